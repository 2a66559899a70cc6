#!/usr/bin/env bash
# Audit yesterday in a lake, with the latest earlier audit as the baseline: audit-lake.sh LAKE REPORTS
# Exit codes are those of `wirehare audit`; FAIL_ON (violation) says what counts, WIREHARE which command runs.
set -euo pipefail
lake=${1:?a lake} reports=${2:?a directory for reports}
day=$(date -u -d yesterday +%F)
mkdir -p "$reports"
baseline=()
for earlier in "$reports"/????-??-??.json; do
    [[ -e $earlier && $(basename "$earlier" .json) < $day ]] && baseline=(--baseline "$earlier")
done
exec "${WIREHARE:-wirehare}" audit "$lake" --since yesterday --until today \
    --report "$reports/$day.html" --json "$reports/$day.json" --title "AMQP audit of $day" \
    --fail-on "${FAIL_ON:-violation}" "${baseline[@]}"
