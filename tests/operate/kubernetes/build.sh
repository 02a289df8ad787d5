#!/usr/bin/env bash
# Builds a real Kubernetes (API server, controller manager, scheduler, kubelet, proxy, pause) from
# Debian 12's source package with Debian 12's Go: nothing else is fetched. 7 to 11 minutes on two
# cores, 2.9 GB meanwhile; 400 MB stay. Needs root, dpkg-dev, gcc and the sources' lists of Debian.
#
#   tests/operate/kubernetes/build.sh CACHE      makes CACHE/VERSION, and prints that; what is there
#                                                is taken as it is
set -euo pipefail
cache=$(realpath -m "${1:?the folder for what is built}")
fail() { echo "kubernetes: $*" >&2; exit 1; }
version=$(apt-cache policy kubernetes-client | awk '/Candidate:/ {print $2}')
case $version in
  '' | '(none)') fail "Debian has no kubernetes-client (apt-get update?)" ;;
esac
out=$cache/$version
if [ -x "$out/pause" ]; then
  echo "$out"
  exit
fi
work=$cache/work
rm -rf "$work"
mkdir -p "$work"/{apt,lists/partial,src,go,bin,gopath/src/k8s.io}
exec 3>&1 >"$cache/build.log" 2>&1  # the one line that this prints is where it is
tell() {
  [ "$1" = 0 ] || {
    echo "kubernetes: the build failed; the end of $cache/build.log:"
    tail -n 5 "$cache/build.log"
  } >&3
}
trap 'tell $?' EXIT

sources=/etc/apt/sources.list.d/debian.sources
if [ -e "$sources" ]; then
  sed 's/^Types: deb$/Types: deb-src/' "$sources" >"$work/apt/src.sources"
else
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$work/apt/src.list"
fi
cat >"$work/apt.conf" <<END
Dir::Etc::sourceparts "$work/apt";
Dir::Etc::sourcelist "/dev/null";
Dir::State::lists "$work/lists";
END
cd "$work/src"
APT_CONFIG=$work/apt.conf apt-get -q update
APT_CONFIG=$work/apt.conf apt-get -q source --download-only "kubernetes=${version%+deb*}" ||
  APT_CONFIG=$work/apt.conf apt-get -q source --download-only kubernetes
# Unpacked, not installed: another Go that is there stays as it is.
apt-get -q download golang-1.19-go golang-1.19-src
for package in golang-*.deb; do
  dpkg -x "$package" "$work/go"
done
tree=$work/gopath/src/k8s.io/kubernetes
dpkg-source -x kubernetes_*.dsc "$tree"
cd "$tree"
export GOROOT=$work/go/usr/lib/go-1.19 GOPATH=$work/gopath GOCACHE=$work/gocache
export GO111MODULE=off CGO_ENABLED=0 GOPROXY=off PATH=$work/go/usr/lib/go-1.19/bin:$PATH

# The one generated file that the package does not carry.
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
others='/(testdata|testing|generators|examples|sample-|code-generator|_examples)|zz_generated'
others+='|_test.go'
folders=$(grep -rl '+k8s:openapi-gen=' --include=*.go pkg cmd plugin staging/src |
  grep -vE "$others" | xargs -n1 dirname | sort -u |
  sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' \
    -e 's#^\(pkg\|cmd\|plugin\)#k8s.io/kubernetes/\1#' | paste -sd,)
"$work/openapi-gen" --logtostderr -i "$folders" -p k8s.io/kubernetes/pkg/generated/openapi \
  -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt \
  -r "$work/openapi.report" --output-base "$work/gopath/src"

told=k8s.io/kubernetes/vendor/k8s.io/component-base/version
for program in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
  go build -trimpath -o "$work/bin/$program" \
    -ldflags "-s -w -X $told.gitVersion=v1.20.2 -X $told.gitMajor=1 -X $told.gitMinor=20" \
    "./cmd/$program"
done
gcc -Os -static -DVERSION=v3.2 -o "$work/bin/pause" build/pause/linux/pause.c
rm -rf "$out"
mv "$work/bin" "$out"
chmod -R u+w "$work"
rm -rf "$work"
echo "$out" >&3
