#!/bin/bash
# Creates the topics of config/lending-platform.toml that do not exist yet. Runs in the Kafka image.
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
        topics --create --if-not-exists --topic "$topic" --partitions 3 "$@"
    fi
}
day=$((24 * 60 * 60 * 1000))
# Each topic takes a JVM that runs for a second or two, so the services get theirs at the same time.
pids=()
for service in kyc credit-scoring income-assessment; do
    {
        for product in home-loan personal-loan car-loan credit-card; do
            make "$product.$service" --config retention.ms=$day
        done
        make "$service.requests" --config retention.ms=$day --config message.timestamp.type=LogAppendTime
        make "$service.dead-letter" --config retention.ms=$((7 * day))
    } &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
