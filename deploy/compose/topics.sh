#!/bin/bash
# Creates the topics of watermaster.toml that do not exist yet. Runs in the Kafka image.
set -euo pipefail
server=kafka:19092
topics() { /opt/kafka/bin/kafka-topics.sh --bootstrap-server "$server" "$@"; }

existing=$(topics --list)
make() {
    local topic=$1
    shift
    if grep -qxF "$topic" <<<"$existing"; then
        echo "$topic exists"
    else
        topics --create --if-not-exists --topic "$topic" "$@"
    fi
}
day=$((24 * 60 * 60 * 1000))
for product in home-loan personal-loan car-loan credit-card; do
    make "$product.kyc" --partitions 3 --config retention.ms=$day
done
make kyc.requests --partitions 3 --config retention.ms=$day
make kyc.dead-letter --partitions 3 --config retention.ms=$((7 * day))
