#!/bin/sh
# Makes a command run once. The second call runs nothing: same output, same exit code.
set -eu
once=${ONCE:-once}

send_invoices() {
  once run --store sqlite:jobs.db --key invoices-2026-11 -- sh -c 'echo sending 3 invoices; date >>sent.log'
}
once() { "$once" "$@"; }

send_invoices
send_invoices
echo "sent $(wc -l <sent.log) time"
