#!/bin/sh
# Answers one HTTP request, which netcat hands over, and prints its body to the log of the container.
while read -r name value && [ ${#name} -gt 1 ]; do
    case $name in [Cc]ontent-[Ll]ength:) length=${value%?} ;; esac # without the carriage return
done
{ head -c "$length"; echo; } >/proc/1/fd/1
printf 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
