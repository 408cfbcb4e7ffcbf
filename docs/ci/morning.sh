#!/usr/bin/env bash
# The morning after, on the one machine that has the store: compact, report, diff, gate. Settings from the environment:
#   STORE   folder that all boxes copied into (needed)
#   SITE    folder for the pages (default: STORE/site)
#   POLICY  a policy file, or the name of a ready one (default: nightly)
# Exit code of the gate: 0 good, 1 not, 2 bad input. A good night is named in STORE/last-good.
set -euo pipefail
: "${STORE:?name the folder that all boxes copied into}"
SITE="${SITE:-$STORE/site}"
mkdir -p "$SITE"

# Runs a command whose verdict (exit code 1) is told and does not end the morning; bad input does.
tell() {
    "$@" || {
        code=$?
        [ "$code" = 1 ] || exit "$code"
    }
}

# A file that cannot be read is named here, and stops the commands that judge.
tell conform compact "$STORE"

conform report "$STORE" --out "$SITE"

# Against the last night that passed; before the first such night there is nothing to compare with.
if [ -e "$STORE/last-good" ]; then
    tell conform diff "$STORE@last-good" "$STORE@newest" --out "$SITE/diff.md" --json "$SITE/diff.json"
    cat "$SITE/diff.md"
fi

conform gate "$STORE@newest" --policy "${POLICY:-nightly}" --junit "$SITE/gate.xml" --good
