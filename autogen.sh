#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes configure and the files around it. Needed in a git checkout, not in a release tarball.
set -eu
cd "$(dirname "$0")"
for tool in autoreconf automake libtoolize; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "autogen.sh: $tool is missing; on Debian: apt-get install autoconf automake libtool" >&2
        exit 1
    fi
done
exec autoreconf --install "$@"
