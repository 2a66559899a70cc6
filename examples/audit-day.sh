#!/usr/bin/env bash
# Decode and audit the captures of one day, yesterday by default:  audit-day.sh [2026-11-20]
#
#   $WIREHARE_ROOT/captures/2026-11-20/*.pcap*     in
#   $WIREHARE_ROOT/tables/date=2026-11-20/         out: the tables, replaced as a whole
#   $WIREHARE_ROOT/reports/2026-11-20.html, .json  out: the report, and the baseline of the next day
#
# A day may be run again at any time: it gives the same files. Exit code: that of `wirehare nightly` (1: findings, 3: some
# captures are damaged; the rest is decoded, and the audit goes on), 75 if another run is active.
set -euo pipefail

root=${WIREHARE_ROOT:-/var/lib/wirehare}
wirehare=${WIREHARE:-wirehare}
day=${1:-$(date -u -d yesterday +%F)}
if ! [[ $day =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]]; then
    echo "audit-day.sh: '$day' is not a date; expected one like 2026-11-20" >&2
    exit 2
fi

mkdir -p "$root/tables" "$root/reports"
exec 9>"$root/lock"
if ! flock --nonblock 9; then
    echo "audit-day.sh: another run holds $root/lock" >&2
    exit 75
fi

options=(--report "$root/reports/$day.html" --json "$root/reports/$day.json" --title "AMQP audit of $day")
if [[ -f $root/audit.toml ]]; then
    options+=(--config "$root/audit.toml")
fi
# The latest audit before this day, also when a day in between is missing, or this one runs again later.
previous=
for json in "$root"/reports/????-??-??.json; do
    name=${json##*/}
    if [[ -f $json && ${name%.json} < $day ]]; then
        previous=$json
    fi
done
if [[ -n $previous ]]; then
    options+=(--baseline "$previous")
fi

"$wirehare" nightly "$root/captures/$day" --output "$root/tables/date=$day" --overwrite "${options[@]}"
