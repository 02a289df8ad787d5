#!/usr/bin/env bash
# One real Kubernetes node, in namespaces of its own: no packet leaves it, its mounts and processes
# go with it, and what a kubelet sets of the kernel stays as it was. Process 1 of:
#
#   unshare --net --mount --pid --fork --kill-child --propagation private --mount-proc \
#     tests/operate/kubernetes/node.sh PROGRAMS FOLDER
#
# PROGRAMS is what build.sh made. FOLDER gets logs and state; images are taken from FOLDER/images
# (docker-archives), FOLDER/srv is /srv/shoal of the node, and FOLDER/kubeconfig lets kubectl in,
# from within the namespaces. From Debian: etcd-server containerd runc containernetworking-plugins
# iptables conntrack.
set -euo pipefail
programs=$(realpath "$1") folder=$(realpath "$2")
cd "$folder"
mkdir -p log run cni images certs etcd kubelet containerd srv kernel
address=192.0.2.10

# What stays of a node elsewhere is this namespace's own.
for place in /var/log/pods /var/log/containers /var/lib/cni /run/netns /run/containerd /srv; do
  mkdir -p "$place"
  mount -t tmpfs tmpfs "$place"
done
mkdir /srv/shoal
mount --bind srv /srv/shoal
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
  kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  [ -e "/proc/sys/$name" ] || continue
  cat "/proc/sys/$name" >"kernel/${name//\//_}"
  mount --bind "kernel/${name//\//_}" "/proc/sys/$name"
done
umount /sys/fs/cgroup/unified 2>/dev/null || true  # runc is content with v1 alone

ip link set lo up
ip link add node0 type bridge
ip addr add "$address/24" dev node0
ip link set node0 up
ip route add default via 192.0.2.1 dev node0
sysctl -qw net.ipv4.ip_forward=1

start() {  # NAME COMMAND...
  "${@:2}" >"log/$1.log" 2>&1 &
}
# wait_for WHAT COMMAND...
wait_for() {
  for _ in $(seq 240); do
    ! "${@:2}" >/dev/null 2>&1 || return 0
    sleep 0.5
  done
  echo "node: $1 does not come" >&2
  exit 1
}

openssl genrsa -out certs/accounts.key 2048 2>/dev/null
token=$(openssl rand -hex 16)
(umask 077 && echo "$token,admin,admin,system:masters" >certs/tokens.csv)
start etcd etcd --data-dir etcd --unsafe-no-fsync \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380
wait_for etcd curl -sf http://127.0.0.1:2379/health
start apiserver "$programs/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
  --secure-port=6443 --advertise-address="$address" --cert-dir=certs/api \
  --service-cluster-ip-range=198.18.0.0/24 --token-auth-file=certs/tokens.csv \
  --authorization-mode=RBAC --service-account-issuer=https://kubernetes.default.svc \
  --service-account-signing-key-file=certs/accounts.key \
  --service-account-key-file=certs/accounts.key --kubelet-preferred-address-types=InternalIP
wait_for 'the API server' curl -skf https://127.0.0.1:6443/readyz
(umask 077 && cat >kubeconfig) <<END
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: node, context: {cluster: node, user: admin}}]
current-context: node
END
start controllers "$programs/kube-controller-manager" --kubeconfig=kubeconfig \
  --service-account-private-key-file=certs/accounts.key --root-ca-file=certs/api/apiserver.crt \
  --leader-elect=false --cert-dir=certs/controllers
start scheduler "$programs/kube-scheduler" --kubeconfig=kubeconfig --leader-elect=false \
  --cert-dir=certs/scheduler

# Without CAP_SYS_RESOURCE no process's score can be lowered.
cat >containerd.toml <<END
version = 2
root = "$folder/containerd/root"
state = "$folder/containerd/state"
[grpc]
  address = "$folder/containerd/socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "shoal.local/pause:1"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$folder/cni"
END
cat >cni/10-node.conflist <<END
{"cniVersion": "0.4.0", "name": "node", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$folder/cni/addresses",
            "ranges": [[{"subnet": "198.51.100.0/25"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
start containerd containerd -c containerd.toml
wait_for containerd ctr -a containerd/socket version
for image in images/*.tar; do
  ctr -a containerd/socket -n k8s.io images import "$image"
done
echo "nameserver $address" >resolv.conf
cat >kubelet.yaml <<END
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failSwapOn: false
clusterDNS: [$address]
clusterDomain: cluster.local
evictionHard: {}
imageGCHighThresholdPercent: 100
resolvConf: $folder/resolv.conf
oomScoreAdj: 0
END
start kubelet "$programs/kubelet" --kubeconfig=kubeconfig --config=kubelet.yaml \
  --container-runtime=remote \
  --container-runtime-endpoint="unix://$folder/containerd/socket" --root-dir="$folder/kubelet" \
  --cert-dir=certs/kubelet --hostname-override=node1 --node-ip="$address" --network-plugin=cni \
  --cni-conf-dir="$folder/cni" --cni-bin-dir=/usr/lib/cni
cat >proxy.yaml <<END
kind: KubeProxyConfiguration
apiVersion: kubeproxy.config.k8s.io/v1alpha1
clientConnection: {kubeconfig: $folder/kubeconfig}
mode: iptables
hostnameOverride: node1
conntrack: {maxPerCore: 0, min: 0}
END
start proxy "$programs/kube-proxy" --config=proxy.yaml
touch run/started
while :; do
  wait -n || true  # reaps what containers leave; of its own it starts none again
  sleep 1
done
