#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# llm_example.sh: the engine of examples/llm generates the tokens that transformers generates for the same random model,
# with enough pages and with so few that requests are preempted; and what it refuses.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
ATTN_CONFIG=$ATTN_TEST_INI
OMP_NUM_THREADS=1
export ATTN_CONFIG OMP_NUM_THREADS
llm=$ATTN_TEST_BUILDDIR/examples/llm/llm
source=$ATTN_TEST_SRCDIR/examples/llm
command -v python3 >/dev/null 2>&1 || { skip "the engine of examples/llm" "no python3 to make its model"; tap_done; exit; }
model=$tap_scratch/model
python3 "$source/make_model.py" "$model" || bail_out "make_model.py fails"

# NAME OPTIONS..: serves requests.txt; its tokens are the expected ones, its last line is left in `summary`.
serves() {
    name=$1
    shift
    "$llm" "$model" "$source/requests.txt" "$@" >"$tap_scratch/tokens" 2>"$tap_scratch/said" || cat "$tap_scratch/said"
    summary=$(tail -n 1 "$tap_scratch/said")
    echo "# $summary"
    ok "$name: the tokens of transformers" cmp "$source/expected.txt" "$tap_scratch/tokens"
}
ok "there are 13 requests" test "$(wc -l <"$source/requests.txt")" -eq 13
ok "and 13 answers" test "$(wc -l <"$source/expected.txt")" -eq 13
serves "all at once"
ok "all at once: requests share a step" grep -q "13 requests" "$tap_scratch/said"
ok "all at once: some tokens are shared" expr "$summary" : '.* [1-9][0-9]* shared, 0 times'
serves "few pages" --pages 12 --tokens 40
ok "few pages: some requests are preempted" expr "$summary" : '.*, [1-9][0-9]* times preempted'
serves "prompts in small pieces" --pages 14 --tokens 7
serves "one after the other" --requests 1
ok "one after the other: more is shared" expr "$summary" : '.* 1[0-9][0-9] shared'
serves "the reference" --backend REFERENCE --quiet
ok "the reference did it" expr "$summary" : 'REFERENCE'

(umask 022 && { cat "$ATTN_TEST_INI" && printf '[select decoder]\nbackend = REFERENCE\ndecode_backend = CPU_ATTN\n'; } \
    >"$tap_scratch/two.ini")
if [ -f "$ATTN_TEST_PLUGIN_DIR/cpu.so" ]; then
    ATTN_CONFIG=$tap_scratch/two.ini
    serves "two backends, decode apart" --pages 14 --tokens 7 --quiet
    ok "both did it" expr "$summary" : 'CPU_ATTN, prefill REFERENCE'
    ATTN_CONFIG=$ATTN_TEST_INI
else
    skip "two backends, decode apart" "the cpu plugin is not built"
fi

# refused NAME TEXT ARGUMENTS..: ends with status 1 and says TEXT.
refused() {
    name=$1 text=$2
    shift 2
    "$llm" "$@" >/dev/null 2>"$tap_scratch/said"
    status=$?
    ok "refused: $name" test "$status" = 1
    ok "refused: $name, in words" grep -q "$text" "$tap_scratch/said"
}
request() { echo "$1" >"$tap_scratch/request"; }
request "4 5 6 199"
refused "a token that the model has not" "token 199; from 0 to 198" "$model" "$tap_scratch/request"
request "250 5 6 7 8 9 10 11"
refused "more than the model can hold" "at most 256" "$model" "$tap_scratch/request"
request "4 5 x"
refused "a word" "in numbers" "$model" "$tap_scratch/request"
request "100 5"
refused "a request beyond the cache" "need 7 pages; give --pages" "$model" "$tap_scratch/request" --pages 6
refused "an unknown backend" "NO_SUCH" "$model" "$source/requests.txt" --backend NO_SUCH
refused "an unknown option" "no such option" "$model" "$source/requests.txt" --page 3
mkdir "$tap_scratch/other"
sed 's/"llama"/"gemma"/' "$model/config.json" >"$tap_scratch/other/config.json"
refused "another family" "model_type is 'gemma'" "$tap_scratch/other" "$source/requests.txt"
sed 's/"hidden_size"/"attn_logit_softcap_new": 3, "hidden_size"/; s/"intermediate_size": 128/"intermediate_size": 64/' \
    "$model/config.json" >"$tap_scratch/other/config.json"
head -c 300000 "$model/model.safetensors" >"$tap_scratch/other/model.safetensors"
refused "half a file" "do not fit its shape and the file" "$tap_scratch/other" "$source/requests.txt"
cp "$model/model.safetensors" "$tap_scratch/other/model.safetensors"
refused "weights of another size" "config.json wants" "$tap_scratch/other" "$source/requests.txt"
sed 's/"num_hidden_layers": 3/"num_hidden_layers": 2/' "$model/config.json" >"$tap_scratch/other/config.json"
refused "weights left over" "model.layers.2.* is a weight that this" "$tap_scratch/other" "$source/requests.txt"
sed 's/"hidden_size"/"attn_type_new": 3, "hidden_size"/' "$model/config.json" >"$tap_scratch/other/config.json"
refused "an unknown field of attention" "attn_type_new concerns" "$tap_scratch/other" "$source/requests.txt"
tap_done
