#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed_example.sh: the vectors of examples/embed equal those of a plain computation in double, for a random small model:
# one sentence at a time and many in a batch, short ones and such that are cut; its tokens; what it refuses.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
ATTN_CONFIG=$ATTN_TEST_INI
OMP_NUM_THREADS=1
export ATTN_CONFIG OMP_NUM_THREADS
embed=$ATTN_TEST_BUILDDIR/examples/embed/embed
source=$ATTN_TEST_SRCDIR/examples/embed
command -v python3 >/dev/null 2>&1 || { skip "the sentences of examples/embed" "no python3 to make its model"; tap_done; exit; }
model=$tap_scratch/model
python3 "$source/make_encoder.py" "$model" || bail_out "make_encoder.py fails"

ascii=$tap_scratch/ascii
{
    printf 'The player plays new tokens.\n\na\nreplaying unable, un-able!  (re)\n  many \t  spaces \r and\ttabs\n'
    printf 'zebra is unknown; buzz too\n[CLS] special [MASK] tokens [mask] and [UNK] [\n[SEP]\nbell \007 and delete \177x\n'
    yes 'tokens and more' | head -n 30 | tr '\n' ' '
    echo
    printf 'a%.0s' $(seq 100)
    echo " b"
    printf 'a%.0s' $(seq 101)
    echo " b"
} >"$ascii"
beyond=$tap_scratch/beyond
cat >"$beyond" <<'TEXT'
Café ÖÉ Straße — “quoted” Ммии 東京x한
 e​zero­width﻿ Ａfull  …¿no?
ΆΑ ͅ éé ﬁ ẞ 豈
TEXT

# same NAME SENTENCES OPTIONS..: tokens and vectors are those of plain_embed.py.
same() {
    name=$1 sentences=$2
    shift 2
    python3 "$source/plain_embed.py" "$model" "$sentences" --ids >"$tap_scratch/ids" || bail_out "plain_embed.py fails"
    python3 "$source/plain_embed.py" "$model" "$sentences" >"$tap_scratch/plain" || bail_out "plain_embed.py fails"
    ok "$name: the tokens" sh -c "'$embed' '$model' '$sentences' --ids | cmp - '$tap_scratch/ids'"
    "$embed" "$model" "$sentences" "$@" >"$tap_scratch/vectors" 2>"$tap_scratch/said"
    summary=$(tail -n 1 "$tap_scratch/said")
    paste -d ' ' "$tap_scratch/vectors" "$tap_scratch/plain" >"$tap_scratch/both"
    ok "$name: the vectors" awk -v lines="$(wc -l <"$sentences")" '
        { n = NF / 2; if (n != 64) bad = 1
          for (i = 1; i <= n; i++) { d = $i - $(i + n); if (d < 0) d = -d; if (!(d <= worst)) worst = d } }
        END { print NR " sentences, largest difference " worst; exit bad || NR != lines || !(worst < 1e-6) }' "$tap_scratch/both"
    echo "# $name: $summary; $(cat "$tap_scratch/out")"
}
ok "twelve sentences" test "$(wc -l <"$ascii")" -eq 12
same "ASCII" "$ascii"
ok "they are one batch" expr "$summary" : '.* 12 sentences, .* 1 batches'
same "small batches" "$ascii" --tokens 40
ok "they are several" expr "$summary" : '.* 12 sentences, .* [3-9] batches'
same "the reference" "$ascii" --backend REFERENCE
ok "the reference did it" expr "$summary" : 'REFERENCE'
tap_unicode=yes
"$embed" "$model" "$beyond" --ids >/dev/null 2>"$tap_scratch/said" || tap_unicode=no
if [ $tap_unicode = no ] && grep -q "without libunistring" "$tap_scratch/said"; then
    skip "beyond ASCII: tokens and vectors" "built without libunistring"
else
    same "beyond ASCII" "$beyond"
fi

# As README.md says, without its two libraries.
if [ "${ATTN_TEST_SANITIZERS:-no}" != no ]; then
    skip "the README's command" "sanitizers are in the library alone"
else
    plain=$tap_scratch/embed
    # shellcheck disable=SC2046,SC2086 # lists of words
    ok "compiles without OpenMP, BLAS and libunistring" $ATTN_TEST_CC -Wall -Wextra -Werror -O1 "$source"/*.c \
        "$source/../llm/checkpoint.c" -o "$plain" -I"$ATTN_TEST_SRCDIR/include" $(pkg-config --cflags jansson) \
        -L"$ATTN_TEST_BUILDDIR/core/.libs" -Wl,-rpath,"$ATTN_TEST_BUILDDIR/core/.libs" -lattn -ljansson -lm
    embed=$plain
    same "plain loops" "$ascii"
    "$plain" "$model" "$beyond" >"$tap_scratch/vectors" 2>"$tap_scratch/said"
    ok "a text beyond ASCII is an error there" grep -q "U+00E9: .*without libunistring" "$tap_scratch/said"
    ok "and no vector" test ! -s "$tap_scratch/vectors"
    embed=$ATTN_TEST_BUILDDIR/examples/embed/embed
fi

# refused NAME TEXT ARGUMENTS..: ends with status 1 and says TEXT.
refused() {
    name=$1 text=$2
    shift 2
    "$embed" "$@" >"$tap_scratch/vectors" 2>"$tap_scratch/said"
    status=$?
    ok "refused: $name" test "$status" = 1
    ok "refused: $name, in words" grep -q "$text" "$tap_scratch/said"
}
printf 'good\nbad \303\050\n' >"$tap_scratch/broken"
refused "bytes that are not UTF-8" "broken:2: byte 4 of the text is not UTF-8" "$model" "$tap_scratch/broken"
printf '\355\240\200\n' >"$tap_scratch/broken"
refused "a surrogate" "byte 0 of the text is not UTF-8" "$model" "$tap_scratch/broken"
refused "no such file" "none.txt: cannot be read" "$model" "$tap_scratch/none.txt"
refused "an unknown option" "no such option" "$model" "$ascii" --id
refused "an unknown backend" "NO_SUCH" "$model" "$ascii" --backend NO_SUCH
other=$tap_scratch/other
changed() { # FILE SED: a copy of the model with one file changed
    rm -rf "$other"
    cp -R "$model" "$other"
    sed "$2" "$model/$1" >"$other/$1"
}
changed config.json 's/"model_type": "bert"/"model_type": "t5"/'
refused "another model" "model_type is 't5'" "$other" "$ascii"
changed config.json 's/"hidden_act": "gelu"/"hidden_act": "gelu_new"/'
refused "another activation" "gelu_new" "$other" "$ascii"
changed config.json 's/"vocab_size": [0-9]*/"vocab_size": 50/'
refused "a vocabulary of another size" "config.json says 50" "$other" "$ascii"
changed config.json 's/"num_hidden_layers": 2/"num_hidden_layers": 1/'
refused "weights left over" "encoder.layer.1.* is a weight that this" "$other" "$ascii"
changed vocab.txt 's/^.SEP.$/[other]/'
refused "a vocabulary without its special tokens" "has no \[SEP\]" "$other" "$ascii"
changed sentence_bert_config.json 's/40/65/'
refused "more tokens than positions" "max_seq_length is 65; expected 3 to the 64" "$other" "$ascii"
changed 1_Pooling/config.json 's/true/false/'
refused "another pooling" "pooling_mode_mean_tokens is not true" "$other" "$ascii"
tap_done
