#!/bin/sh
# `sh scripts/kind.sh`: the chart on a real Kubernetes in Docker: install, `helm test`, an upgrade under load, the
# loss of a node under load, and uninstall.
#
# Needs docker with buildx, kind, kubectl and helm, 8 cores, 24 GiB and access to the internet. CALICO and KUBERAY choose
# versions. The cluster is deleted at the end unless KEEP is set.
set -eu

CALICO=${CALICO:-v3.30.3} KUBERAY=${KUBERAY:-1.5.1} CLUSTER=${CLUSTER:-baton-check} NAMESPACE=llm
root=$(dirname "$0")/.. here=$(dirname "$0")/kind
for tool in docker kind kubectl helm; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed" >&2; exit 1; }
done
KUBECONFIG=$(mktemp)
export KUBECONFIG
trap '[ -n "${KEEP:-}" ] || kind delete cluster --name "$CLUSTER"; rm -f "$KUBECONFIG"' EXIT
trap 'exit 130' INT TERM

kube() { kubectl --namespace "$NAMESPACE" "$@"; }
say() { printf '\n== %s\n' "$*"; }

# Wait until the command after the number of seconds succeeds.
await() {
    end=$(($(date +%s) + $1)) && shift
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$end" ] || { echo "still not true: $*" >&2; kube get pods -o wide >&2; exit 1; }
        sleep 2
    done
}

# The chart with these additional values.
apply() {
    helm upgrade --install baton "$root/helm/baton" --namespace "$NAMESPACE" --create-namespace \
        -f "$root/helm/baton/values-cpu.yaml" -f "$here/values.yaml" "$@"
}

start_load() {
    sed "s/LOAD_S/$1/" "$here/load.yaml" | kube apply -f -
    kube wait --for=condition=Ready pod/load --timeout=120s
}

# Fails unless every request of the load completed.
end_load() {
    await 900 sh -c "kubectl --namespace $NAMESPACE get pod load -o jsonpath='{.status.phase}' | grep -Eq 'Succeeded|Failed'"
    result=$(kube logs load | tail -n 1)
    kube delete pod load
    echo "load: $result"
    case $result in "completed 0 "*) exit 1 ;; "completed "*" failed 0") ;; *) exit 1 ;; esac
}

clusters() { kube get rayclusters -o name; }
only_cluster_but() { [ "$(clusters | wc -l)" -eq 1 ] && [ "$(clusters)" != "$1" ]; }
serves() { [ "$(kube get deployment baton-router -o jsonpath='{.status.readyReplicas}')" = 1 ]; }

say "cluster, Calico $CALICO, KubeRay $KUBERAY"
kind create cluster --name "$CLUSTER" --config "$here/cluster.yaml"
kubectl apply -f "https://raw.githubusercontent.com/projectcalico/calico/$CALICO/manifests/calico.yaml"
kubectl wait --for=condition=Ready nodes --all --timeout=300s
helm install kuberay-operator kuberay-operator --repo https://ray-project.github.io/kuberay-helm/ \
    --version "$KUBERAY" --namespace kuberay --create-namespace --wait

say "image"
(cd "$root" && docker buildx bake cpu --load)
kind load docker-image --name "$CLUSTER" baton:0.1.0-cpu

say "install"
apply
await 900 serves
helm test baton --namespace "$NAMESPACE" --logs --timeout 10m

say "upgrade under load: a change of the pods makes KubeRay build a second cluster"
before=$(clusters)
start_load 660
apply --set-string decode.podAnnotations.upgraded=yes
await 600 only_cluster_but "$before"
[ "$(kube get pod load -o jsonpath='{.status.phase}')" = Running ] || { echo "the load ended before the switch" >&2; exit 1; }
end_load

say "loss of a node under load"
node=$(kube get pods -l ray.io/group=decode -o jsonpath='{.items[0].spec.nodeName}')
start_load 180
sleep 30 # some load before the loss
docker kill "$node"
end_load
docker start "$node"
kubectl wait --for=condition=Ready "node/$node" --timeout=300s

say "uninstall"
helm uninstall baton --namespace "$NAMESPACE" --wait
await 300 sh -c "! kubectl --namespace $NAMESPACE get pods -o name | grep -q ."
say "all passed"
