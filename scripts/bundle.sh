#!/usr/bin/env bash
# Makes a folder of the programs and every library they need, which can be copied to another x86-64
# Linux (with this machine's glibc or a newer one) and run from wherever it lies there: container
# images and machines with a GPU get Shoal this way.
#
#   scripts/bundle.sh [--output FOLDER] [--data FOLDER] [--xz]
#                     [--with-cuda-libraries | --without-cuda] [--build FOLDER] [--no-build]
#
#     --output              the folder to make; one that is there is made anew (default:
#                           build/bundle)
#     --data                the folder of real test data (default: $SHOAL_TEST_DATA); its golden
#                           steps go with the bundle
#     --xz                  also FOLDER.tar.xz; `python3 -m tarfile -e FOLDER.tar.xz` unpacks it
#                           where there is no xz
#     --with-cuda-libraries cuBLASLt, cuDNN and NCCL as well: a gigabyte. Without them the programs
#                           use those they find when they run
#     --without-cuda        programs for CPUs alone, with a toolkit there or not
#     --build               the build folder (default: build/package, or build/package-cpu)
#     --no-build            take the programs as they are there
#
# In it: bin (programs), lib (libraries; programs look there first, whatever LD_LIBRARY_PATH says),
# share (manifest.tsv: what is in it, of which version and size; licenses; gpu-check.sh and what it
# needs). Of glibc and of the NVIDIA driver nothing is in it: those belong to the machine.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
output=$root/build/bundle
build_folder=
data=${SHOAL_TEST_DATA:-}
xz='' cuda_libraries='' with_cuda=ON build=yes
while [ $# -gt 0 ]; do
  case $1 in
    --output) output=$2; shift ;;
    --data) data=$2; shift ;;
    --build) build_folder=$2; shift ;;
    --xz) xz=yes ;;
    --with-cuda-libraries) cuda_libraries=yes ;;
    --without-cuda) with_cuda=OFF ;;
    --no-build) build='' ;;
    *) sed -n '/^#   scripts/,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
fail() { echo "bundle: $*" >&2; exit 1; }
if [ $with_cuda = OFF ] && [ -n "$cuda_libraries" ]; then
  fail "--with-cuda-libraries contradicts --without-cuda"
fi
[ $with_cuda = ON ] && suffix='' || suffix=-cpu
build_folder=${build_folder:-$root/build/package$suffix}
mkdir -p "$(dirname "$output")"
output=$(cd "$(dirname "$output")" && pwd)/$(basename "$output")
if [ -e "$output" ] && [ ! -e "$output/share/manifest.tsv" ]; then
  fail "$output is there and is no bundle: name another folder"
fi

programs=(shoal shoal-coordinator shoal-server shoal-worker)
if [ -n "$build" ]; then
  "$root/scripts/install-dependencies.sh"
  cd "$root"
  cmake --preset package -B "$build_folder" -DSHOAL_WITH_CUDA=$with_cuda >/dev/null
  # Not a target where there is no CUDA toolkit. (All of the list before the search: one that ends
  # early would fail the pipe.)
  targets=$(cmake --build "$build_folder" --target help)
  if grep -q '^gpu_check:' <<<"$targets"; then
    programs+=(gpu_check)
  elif [ $with_cuda = ON ]; then
    echo "bundle: no CUDA toolkit was found: the bundle is without gpu_check" >&2
  fi
  cmake --build "$build_folder" -j "$(nproc)" --target "${programs[@]}"
elif [ -x "$build_folder/bin/gpu_check" ]; then
  programs+=(gpu_check)
fi

rm -rf "$output"
mkdir -p "$output"/{bin,lib,share/licenses}
for program in "${programs[@]}"; do
  built=$build_folder/bin/$program
  [ -x "$built" ] || fail "$built is not there: run without --no-build"
  # All of it is read: who writes into a pipe that was left fails the pipe.
  readelf -d "$built" | grep -F '[$ORIGIN/../lib]' >/dev/null ||
    fail "$program does not look for libraries in ../lib"
  strip -o "$output/bin/$program" "$built"
done

# What belongs to the machine: glibc, the loader, the driver.
of_the_machine='linux-vdso|ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv'
of_the_machine="^($of_the_machine|libutil|libanl|libcuda|libnvidia-[a-z-]*)\\.so"
# libraries FILES...: "name path" of all they need, of the libraries they need, and so on
libraries() {
  local resolved
  resolved=$(env -u LD_LIBRARY_PATH ldd "$@")
  if grep -F 'not found' <<<"$resolved"; then
    fail "libraries are missing"
  fi
  awk '$2 == "=>" {print $1, $3}' <<<"$resolved" | sort -u | grep -vE "$of_the_machine"
}

declare -A origin_of  # by name in lib: the file that it was
add_library() {  # name path
  install -m 755 "$(readlink -f "$2")" "$output/lib/$1"
  strip --strip-unneeded "$output/lib/$1"
  # A library with a path of its own would look there and nowhere else.
  if readelf -d "$output/lib/$1" | grep -E '\((RPATH|RUNPATH)\)' >/dev/null; then
    fail "$2 has a library path of its own"
  fi
  origin_of[$1]=$(readlink -f "$2")
}
while read -r name path; do
  add_library "$name" "$path"
done < <(libraries "${programs[@]/#/$output/bin/}")

# They find each other through the program's ../lib.
if [ -n "$cuda_libraries" ]; then
  . "$root/scripts/cuda_libraries.sh"
  copy_cuda_libraries "$output/lib"
fi

install -m 755 "$root/scripts/gpu-check.sh" "$output/share/gpu-check.sh"
install -m 755 "$root/scripts/torch_baseline.py" "$output/share/torch_baseline.py"
install -m 644 "$root/scripts/torch_model.py" "$output/share/torch_model.py"
if [ -n "$data" ]; then
  mkdir -p "$output/share/data"
  cp -r "$data/golden" "$data/stories260k" "$output/share/data/"
  chmod -R u+w "$output/share/data"
else
  echo "bundle: without test data (--data, SHOAL_TEST_DATA): gpu-check.sh will leave out golden" \
    "steps and training through servers" >&2
fi

# From the bundle and the machine, and from nowhere else.
for program in "$output"/bin/*; do
  while read -r name path; do
    [ "$(readlink -f "$path")" = "$output/lib/$name" ] ||
      fail "$(basename "$program") takes $name from $path"
  done < <(libraries "$program")
done

# By file without /usr, which dpkg knows some files with and others without.
declare -A package_of
while read -r package path; do
  package_of[${path#/usr}]=${package%%:*}
done < <(dpkg-query -S "${origin_of[@]}" "${origin_of[@]#/usr}" 2>/dev/null || true)

# tab-separated: file, bytes, package, version
{
  printf 'file\tbytes\tpackage\tversion\n'
  version=$("$output/bin/shoal" --version | awk '{print $2}')
  for file in "$output"/bin/* "$output"/lib/*; do
    name=$(basename "$file")
    origin=${origin_of[$name]:-none}
    package=${package_of[${origin#/usr}]:-}
    library_version=''
    if [ -n "$package" ]; then
      library_version=$(dpkg-query -W -f '${Version}\n' "$package" | head -1)
      license=/usr/share/doc/$package/copyright
      cp -Ln "$license" "$output/share/licenses/$package" 2>/dev/null || true
    elif [ "$(basename "$(dirname "$file")")" = bin ]; then
      package=shoal library_version=$version
    else
      package=CUDA
    fi
    printf '%s\t%s\t%s\t%s\n' "${file#"$output/"}" "$(stat -c %s "$file")" "$package" \
      "$library_version"
  done
} >"$output/share/manifest.tsv"

glibc=$(objdump -T "$output"/bin/* "$output"/lib/* 2>/dev/null | grep -oE 'GLIBC_[0-9.]+' |
  sort -uV | tail -1)
mib() { awk -v b="$1" 'BEGIN {printf "%.1f MiB", b / 1048576}'; }
echo "$output: $(mib "$(du -sb "$output" | cut -f1)")," \
  "$(find "$output/lib" -type f | wc -l) libraries; needs ${glibc/_/ } or newer"
if [ -n "$xz" ]; then
  name=$(basename "$output")
  tar -C "$(dirname "$output")" --owner=0 --group=0 -cf - "$name" | xz -T0 -6 >"$output.tar.xz"
  echo "$output.tar.xz: $(mib "$(stat -c %s "$output.tar.xz")"); unpack it with:" \
    "tar xf $name.tar.xz, or without xz: python3 -m tarfile -e $name.tar.xz"
fi
