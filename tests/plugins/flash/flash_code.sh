#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The machine code of flash's Hopper kernels: every instance multiplies by wgmma, and no main loop (an innermost loop with
# wgmma in it) touches local memory, which is what a spilled register is. Reads the objects with cuobjdump; SKIP without.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/plugins/machine_code.sh"
for object in kernels/cuda/dense/.libs/prefill_sm90-bf16-*.o \
    kernels/cuda/dense/.libs/prefill_sm90_widened-*.o kernels/cuda/dense/.libs/prefill_sm90_e4m3-*.o; do
    name=$(basename "$object" .o)
    if ! "$dump" -sass "$object" >"$tap_scratch/sass" 2>"$tap_scratch/err"; then
        skip "$name" "$(head -n 1 "$tap_scratch/err")"
        continue
    fi
    # one line for each kernel: products, main loops, and accesses to local memory within these
    awk '
    function number(s, i, n) {
        n = 0
        s = tolower(s)
        for (i = 1; i <= length(s); i++) n = n * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
        return n
    }
    function report(i, j, inner, loops, bad) {
        if (kernel == "") return
        loops = bad = 0
        for (i = 1; i <= b; i++) { # backward branches; innermost: no other one with products lies within
            inner = count(mma, m, to[i], from[i]) > 0
            for (j = 1; j <= b && inner; j++)
                if (j != i && to[j] >= to[i] && from[j] <= from[i] && to[j] - from[j] != to[i] - from[i] &&
                    count(mma, m, to[j], from[j]) > 0) inner = 0
            if (!inner) continue
            loops++
            bad += count(local, l, to[i], from[i])
        }
        print kernel, m, loops, bad
    }
    function count(list, n, lo, hi, i, c) {
        c = 0
        for (i = 1; i <= n; i++) c += list[i] >= lo && list[i] <= hi
        return c
    }
    /Function :/ { report(); kernel = $3; m = l = b = 0; wait = -1000; next }
    /^ *\/\*[0-9a-f]+\*\// {
        match($0, /\/\*[0-9a-f]+\*\//)
        at = number(substr($0, RSTART + 2, RLENGTH - 4))
        if ($0 ~ /TRYWAIT/) wait = at # the slow path of a barrier lies at the end and jumps back: no loop
        if ($0 ~ /[HQ]GMMA/) mma[++m] = at
        else if ($0 ~ / (LDL|STL)[. ]/) local[++l] = at
        else if (match($0, / BRA[^;]* 0x[0-9a-f]+/)) {
            target = substr($0, RSTART, RLENGTH)
            sub(/.*0x/, "", target)
            target = number(target)
            if (target < at && at - wait > 96) { to[++b] = target; from[b] = at }
        }
    }
    END { report() }' "$tap_scratch/sass" >"$tap_scratch/kernels"
    kernels=$(wc -l <"$tap_scratch/kernels")
    wrong=$(awk '$2 == 0 || $3 == 0 || $4 != 0' "$tap_scratch/kernels")
    if [ "$kernels" -gt 0 ] && [ -z "$wrong" ]; then
        pass "$name: $kernels kernels multiply by wgmma and spill nothing in their main loops"
    else
        fail "$name: of $kernels kernels some have (name, products, main loops, local accesses)" "$wrong"
    fi
done
tap_done
