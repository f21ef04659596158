#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn info: plugins, backends, devices, configuration, probe.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"

wants "shows the reference backend" 0 "^  REFERENCE " info
wants "shows the CPU" 0 "^  cpu  *.* threads" info
json "JSON: version" version "[0-9].*" info
json "JSON: ABI" abi_major 1 info
json "JSON: the first device is the CPU" devices.0.device cpu info
driver=$ATTN_TEST_BUILDDIR/tests/layer/.libs/layer_fake_driver.so
if [ -f "$driver" ] && [ -z "${ATTN_TEST_SANITIZERS-}" ]; then
    mkdir "$tap_scratch/driver" && ln -s "$driver" "$tap_scratch/driver/libcuda.so.1"
    LD_LIBRARY_PATH=$tap_scratch/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
    wants "every GPU is shown" 0 "^  cuda:1  Fake GPU 1, sm_90" info
    json "JSON: every GPU" devices.2.device cuda:1 info
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH#"$tap_scratch/driver"}
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH#:}
else
    skip "every GPU is shown" "no pretended driver"
fi
wants "one backend" 0 "preferred_block_size" info --backend REFERENCE
wants "its graphs by name" 0 "graph_support  *never" info --backend REFERENCE
if [ -f "$ATTN_TEST_PLUGIN_DIR/cpu.so" ]; then
    wants "the options of its plugin" 0 "^\[option cpu\]" info --backend CPU_ATTN
    wants "with default, values and meaning" 0 "num_threads *0 *0 to [0-9]* *[A-Za-z]" info --backend CPU_ATTN
    json "JSON: options" options.0.default auto info --backend CPU_ATTN
else
    skip "the options of its plugin" "the cpu plugin is not built"
fi
wants "a backend by any case" 0 "^REFERENCE" info --backend reference
wants "a misspelt backend is guessed" 1 "REFERENCE" info --backend REFERENC
json "JSON: one backend" capabilities.head_sizes any info --backend REFERENCE
wants "one word too many" 2 "unexpected argument" info everything

wants "configuration with its sources" 0 "plugin_dir .*build.ini:[0-9]" info --config
json "JSON: configuration" 0.section attn info --config
printf '[attn]\nlog = info\n' >"$tap_scratch/mine.ini"
wants "a file of one's own" 0 "log  *info  *.*mine.ini:2" info --config --config-file "$tap_scratch/mine.ini"
printf '[attn]\nplugns = cpu\n' >"$tap_scratch/bad.ini"
wants "a bad file names line and nearest key" 4 "bad.ini:2.*plugins" info --config-file "$tap_scratch/bad.ini"

printf '[plugin none]\nrequired = yes\n' >"$tap_scratch/required.ini"
wants "configuration beside a plugin that is missed" 0 "required  *yes" info --config --config-file "$tap_scratch/required.ini"
ok "a bad file is told once" sh -c "test \$('$attn' info --config --config-file '$tap_scratch/bad.ini' 2>&1 | wc -l) -eq 1"
wants "probe: a plugin" 0 "usable: reference" info --probe "$ATTN_TEST_PLUGIN_DIR/reference.so"
json "probe: JSON" name reference info --probe "$ATTN_TEST_PLUGIN_DIR/reference.so"
echo "not a plugin" >"$tap_scratch/text.so"
wants "probe: a text file" 1 "not usable" info --probe "$tap_scratch/text.so"
json "probe: JSON says why" status "ATTN_E_.*" info --probe "$tap_scratch/text.so"
wants "probe: no file" 3 "no such file" info --probe "$tap_scratch/nothing.so"
tap_done
