#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed_kernels.sh FILE...: a C header with the text of each kernel file, for NVRTC: the program needs no file at run time.
# Files include each other by name alone.
set -e
echo '/* Made by embed_kernels.sh from the kernel files. */'
table=
for file; do
    name=$(basename "$file")
    id=$(echo "$name" | tr '.-' '__')
    echo "static const char text_${id}[] = {"
    sed 's|^#include ".*/|#include "|' "$file" | od -An -v -tu1 | sed 's/\([0-9][0-9]*\)/\1,/g'
    echo '0};'
    table="$table{\"$name\", text_$id},
"
done
echo 'static const struct triton_source { const char *name, *text; } triton_sources[] = {'
printf '%s{0, 0}};\n' "$table"
