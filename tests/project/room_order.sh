#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# room_order.sh: the rooms of core include each other one way only, in the order of core/core.am; kernels and plugins include
# what is below them; file names are unique in the tree, so that an #include or a log line names one file.
set -u
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
cd "$ATTN_TEST_SRCDIR" || bail_out "no source tree"

rooms=$(sed -n 's/^core_sources = //p' core/core.am | tr -d '$()' | sed 's/core_//g')
[ -n "$rooms" ] || bail_out "core/core.am has no line core_sources"
below=" "
for room in $rooms; do
    below="$below$room "
    wrong=$(grep -Hno '#include "[a-z_]*/' core/"$room"/*.[ch] | while IFS=: read -r file line include; do
        from=${include#*\"}
        case $below in *" ${from%/} "*) ;; *) echo "$file:$line includes ${from}" ;; esac
    done)
    if [ -z "$wrong" ]; then pass "core/$room includes no room above it"; else fail "core/$room includes no room above it" "$wrong"; fi
done
for folder in core/*/; do
    name=$(basename "$folder")
    case " $rooms " in *" $name "*) ;; *) fail "core/$name has its place in core/core.am" "it is in no list" ;; esac
done

# Kernels know neither the ABI nor a plugin; a plugin knows kernels and plugins/common, no other plugin.
wrong=$(grep -rnE '#include [<"](attn/|.*(plugins|core|kit|tools)/)' kernels)
if [ -z "$wrong" ]; then pass "kernels include nothing above them"; else fail "kernels include nothing above them" "$wrong"; fi
wrong=
for folder in plugins/*/; do
    name=$(basename "$folder")
    others=$(basename -a plugins/*/ | grep -vxE "$name|common" | tr '\n' '|')
    found=$(grep -rnE "#include \"([^\"]*/)?(${others%|})/" "$folder" --include='*.[ch]' --include='*.cu*')
    wrong="$wrong${found:+$found
}"
done
if [ -z "$wrong" ]; then pass "no plugin includes another"; else fail "no plugin includes another" "$wrong"; fi

# Names that every folder of its kind has, and copies that are data.
twice=$(find core include kernels kit plugins tools tests bench \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.sh' -o -name '*.am' \) 2>/dev/null | sed 's:.*/::' | grep -vxE 'plugin\.(c|am)' | sort | uniq -d)
if [ -z "$twice" ]; then pass "file names are unique"; else fail "file names are unique" "more than once: $(echo "$twice" | tr '\n' ' ')"; fi
tap_done
