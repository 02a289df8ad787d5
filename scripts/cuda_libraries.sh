# What of CUDA programs open by name when they run; sourced by scripts/bundle.sh and deploy/image.

# copy_cuda_libraries FOLDER: cuBLASLt, cuDNN, NCCL and what these open, a gigabyte, from the
# toolkit that builds find or from Debian's folder. What was copied is in the array cuda_libraries
copy_cuda_libraries() {
  local nvcc toolkit folders pattern folder path found
  cuda_libraries=()
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  folders=("$toolkit"/{lib,lib64,targets/x86_64-linux/lib} /usr/lib/x86_64-linux-gnu)
  for pattern in libcublas.so.\* libcublasLt.so.\* libcudnn\*.so.\* libnccl.so.\* libnvrtc.so.\*; do
    found=''
    for folder in "${folders[@]}"; do
      for path in "$folder"/$pattern; do
        # Named by the major version alone, as programs ask for them.
        [[ -e $path && $(basename "$path") =~ \.so\.[0-9]+$ ]] || continue
        install -m 755 "$(readlink -f "$path")" "$1/$(basename "$path")"
        cuda_libraries+=("$(readlink -f "$path")")
        found=yes
      done
      [ -z "$found" ] || break
    done
    [ -n "$found" ] || echo "no $pattern in ${folders[*]}: left out" >&2
  done
}
