{{/* Checks for values that the operator, Ray or the application would reject or misplace, before anything is installed. */}}
{{- define "baton.checks" -}}
{{- $v := .Values -}}
{{- $_ := include "baton.modelPath" . -}}
{{- if and $v.ray.checkOperator (not (.Capabilities.APIVersions.Has "ray.io/v1/RayService")) -}}
{{- fail "the KubeRay operator is missing: this cluster has no ray.io/v1 RayService. Install it first (helm install kuberay-operator kuberay/kuberay-operator --version 1.5.1 or later), or set ray.checkOperator=false if the API cannot be queried (helm template)" -}}
{{- end -}}
{{- include "baton.checkNames" . -}}
{{- include "baton.checkMetricsNames" . -}}
{{- range $name := list "prefill" "decode" -}}
{{- include "baton.checkPool" (dict "root" $ "name" $name) -}}
{{- end -}}
{{- if and (not (include "baton.hasGroups" .)) (or $v.eplb.enabled (int $v.eplb.numRedundantExperts)) -}}
{{- fail "eplb: each worker has all experts, so there is nothing to place; set a pool's expertParallelSize to more than 1" -}}
{{- end -}}
{{- if and (not (include "baton.hasGroups" .)) (gt (int $v.minExpertRanks) 1) -}}
{{- fail "minExpertRanks: each worker has all experts, so there are no ranks; set a pool's expertParallelSize to more than 1" -}}
{{- end -}}
{{- if lt (int (include "baton.leastDecode" .)) 1 -}}
{{- fail "decode: no worker decodes; decode.minReplicas (decode.replicas without autoscaling) must be at least 1" -}}
{{- end -}}
{{- include "baton.checkHead" . -}}
{{- include "baton.checkBudget" . -}}
{{- include "baton.checkRegistry" . -}}
{{- include "baton.checkCache" . -}}
{{- include "baton.checkValues" . -}}
{{- include "baton.checkRouter" . -}}
{{- include "baton.checkTLS" . -}}
{{- include "baton.checkBackendTLS" . -}}
{{- end }}

{{- define "baton.checkNames" -}}
{{- $name := include "baton.fullname" . -}}
{{- if gt (len $name) 47 -}}
{{- fail (printf "the name %s has %d characters, and KubeRay allows 47 for a RayService: shorten the release's name or set fullnameOverride" $name (len $name)) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "the name %s is invalid for a RayService: it must begin with a letter and have only a-z, 0-9 and -; set fullnameOverride" $name) -}}
{{- end -}}
{{- end }}

{{- define "baton.leastDecode" -}}{{ (fromYaml (include "baton.pool" (dict "root" . "name" "decode"))).least }}{{- end }}

{{- define "baton.checkPool" -}}
{{- $v := .root.Values -}}
{{- $name := .name -}}
{{- $values := index $v $name -}}
{{- $pool := fromYaml (include "baton.pool" .) -}}
{{- if gt (int $values.minReplicas) (int $values.maxReplicas) -}}
{{- fail (printf "%s.minReplicas: %v is more than maxReplicas, %v" $name $values.minReplicas $values.maxReplicas) -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not (kindIs "invalid" $values.replicas)) -}}
{{- fail (printf "%s.replicas: %v, but with autoscaling the size follows the load, starting at minReplicas; leave it out, or set autoscaling.enabled=false" $name $values.replicas) -}}
{{- end -}}
{{- if lt (int $pool.size) 1 -}}
{{- fail (printf "%s.%s: the application needs at least one to begin with" $name (ternary "minReplicas" "replicas" (or $v.autoscaling.enabled (kindIs "invalid" $values.replicas)))) -}}
{{- end -}}
{{- $timeout := $v.autoscaling.startTimeoutSeconds -}}
{{- if and $v.autoscaling.enabled (not (kindIs "invalid" $timeout)) (lt (float64 $timeout) (float64 $values.startTimeoutSeconds)) -}}
{{- fail (printf "autoscaling.startTimeoutSeconds: %v, but a worker of %s may take %v (%s.startTimeoutSeconds): it would be given up while it starts, again and again" $timeout $name $values.startTimeoutSeconds $name) -}}
{{- end -}}
{{- if gt (int $pool.mostPods) (int $values.maxPods) -}}
{{- fail (printf "%s.maxReplicas: %v replicas, %s, need %v pods, but the worker group has %v at most; raise %s.maxPods" $name $pool.most (ternary (printf "%v pods each" $values.nodesPerWorker) (printf "%v per pod" $values.replicasPerPod) (gt (int $values.nodesPerWorker) 1)) $pool.mostPods $values.maxPods $name) -}}
{{- end -}}
{{- if and (gt (int $values.tensorParallelSize) 1) (gt (int $values.expertParallelSize) 1) (ne (int $values.tensorParallelSize) (int $values.expertParallelSize)) -}}
{{- fail (printf "%s.tensorParallelSize: %v, but expertParallelSize: %v; the ranks of a worker share its experts among themselves: set the same number, to keep each expert whole on one rank, or 1" $name $values.tensorParallelSize $values.expertParallelSize) -}}
{{- end -}}
{{- if mod (int $values.tensorParallelSize) (int $values.nodesPerWorker) -}}
{{- fail (printf "%s.nodesPerWorker: %v nodes cannot have equal shares of %v ranks; set %s.tensorParallelSize to a multiple of %v" $name $values.nodesPerWorker $values.tensorParallelSize $name $values.nodesPerWorker) -}}
{{- end -}}
{{- if and (gt (int $values.nodesPerWorker) 1) (gt (int $values.replicasPerPod) 1) -}}
{{- fail (printf "%s.replicasPerPod: %v, but a worker over several nodes has a pod on each of them to itself; set 1" $name $values.replicasPerPod) -}}
{{- end -}}
{{- if lt (int $pool.least) (int $pool.groupSize) -}}
{{- fail (printf "%s.%s: %v, but the pool's group begins with %v workers (expertParallelSize), and none of them serves before that; set %v or more" $name (ternary "minReplicas" "replicas" (or $v.autoscaling.enabled (kindIs "invalid" $values.replicas))) $pool.least $values.expertParallelSize $values.expertParallelSize) -}}
{{- end -}}
{{- if gt (mulf $values.shmGi 1024) (float64 $pool.podMemoryMi) -}}
{{- fail (printf "%s.shmGi: %v GiB of shared memory count as the pod's memory, which has %v MiB" $name $values.shmGi $pool.podMemoryMi) -}}
{{- end -}}
{{- with $v.kvStores.hostMemoryBytes -}}
{{- if gt (float64 (include "baton.bytes" .)) (mulf $values.shmGi 1073741824) -}}
{{- fail (printf "kvStores.hostMemoryBytes: %v are in the pods' shared memory, of which %s.shmGi gives %v GiB; raise it" . $name $values.shmGi) -}}
{{- end -}}
{{- end -}}
{{- if $values.gpuClaimTemplate -}}
{{- if eq $v.device "cpu" -}}
{{- fail (printf "%s.gpuClaimTemplate: device is cpu, so the pods have no GPUs to claim" $name) -}}
{{- end -}}
{{- if semverCompare "<1.34-0" .root.Capabilities.KubeVersion.Version -}}
{{- fail (printf "%s.gpuClaimTemplate: dynamic resource allocation needs Kubernetes 1.34, and this is %s; leave it out, and the pods request %s" $name .root.Capabilities.KubeVersion.Version $v.gpuResource) -}}
{{- end -}}
{{- if $v.autoscaling.clusterBudget.enabled -}}
{{- fail (printf "%s.gpuClaimTemplate: autoscaling.clusterBudget counts the nodes' %s, which claims do not use; set autoscaling.budgetGPUs instead" $name $v.gpuResource) -}}
{{- end -}}
{{- end -}}
{{- range $resource, $_ := $values.extraResources -}}
{{- if has $resource (list "cpu" "memory" $v.gpuResource) -}}
{{- fail (printf "%s.extraResources: %s is set twice; it follows from cpu, memoryGi and tensorParallelSize" $name $resource) -}}
{{- end -}}
{{- if and $v.rdma.enabled (eq $resource $v.rdma.resource) -}}
{{- fail (printf "%s.extraResources: %s is set twice; rdma.count sets the number" $name $resource) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The operator checks for these only at the head. */}}
{{- define "baton.checkHead" -}}
{{- $refused := list "RAY_REDIS_ADDRESS" "REDIS_USERNAME" "RAY_enable_autoscaler_v2" -}}
{{- if .Values.head.faultTolerance.enabled -}}{{- $refused = append $refused "REDIS_PASSWORD" -}}{{- end -}}
{{- range .Values.head.extraEnv -}}
{{- if has .name $refused -}}
{{- fail (printf "head.extraEnv: %s is the operator's own; set the head's Redis in head.faultTolerance" .name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checkBudget" -}}
{{- if .Values.autoscaling.enabled -}}
{{- $prefill := fromYaml (include "baton.pool" (dict "root" . "name" "prefill")) -}}
{{- $decode := fromYaml (include "baton.pool" (dict "root" . "name" "decode")) -}}
{{- $least := add (mul $prefill.least (max 1 $prefill.gpus)) (mul $decode.least (max 1 $decode.gpus)) -}}
{{- if lt (int (include "baton.budgetGPUs" .)) (int $least) -}}
{{- fail (printf "autoscaling.budgetGPUs: %v, but the smallest pools need %v" .Values.autoscaling.budgetGPUs $least) -}}
{{- end -}}
{{- if and .Values.autoscaling.clusterBudget.enabled (eq .Values.device "cpu") -}}
{{- fail "autoscaling.clusterBudget: it counts GPUs, and device is cpu" -}}
{{- end -}}
{{- if not (kindIs "invalid" .Values.autoscaling.flipSeconds) -}}
{{- if ne (int $prefill.gpus) (int $decode.gpus) -}}
{{- fail (printf "autoscaling.flipSeconds: workers of %v GPUs for prefill and %v for decode cannot replace each other; remove it, or set the same tensorParallelSize" $prefill.gpus $decode.gpus) -}}
{{- end -}}
{{- if include "baton.hasGroups" . -}}
{{- fail "autoscaling.flipSeconds: ranks of an expert group keep their role; remove it, or set expertParallelSize to 1" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checkRegistry" -}}
{{- with .Values.redis -}}
{{- if and (not .enabled) (not .external.url) (not .external.existingSecret) -}}
{{- fail "redis: workers and routers need a registry; set redis.enabled, redis.external.url or redis.external.existingSecret" -}}
{{- end -}}
{{- if and .external.url .external.existingSecret -}}
{{- fail "redis.external: the URL is given by url or by existingSecret, not both" -}}
{{- end -}}
{{- $port := regexFind ":[0-9]+(/|[?]|$)" (regexReplaceAll "^[^@]*@" .external.url "") | regexFind "[0-9]+" -}}
{{- if and $port (not (regexMatch "^redis(s)?[+]" .external.url)) (ne $port (toString .external.port)) -}}
{{- fail (printf "redis.external.port: %v, but the URL has %s; the network policies allow the former" .external.port $port) -}}
{{- end -}}
{{- if and (not .enabled) .auth.existingSecret -}}
{{- fail "redis.auth.existingSecret: it is the Secret of the chart's own Redis, which redis.enabled=false leaves out; use redis.external.existingSecret" -}}
{{- end -}}
{{- if and .enabled (not .auth.existingSecret) (not $.Values.ray.checkOperator) -}}
{{- fail (printf "redis.auth.existingSecret: missing; with ray.checkOperator=false the chart cannot look up the password of a running Redis, so each rendering would have another, and restart Redis. Create a Secret with `password` and `url`, and name it here; for a Redis that runs already with the password in the Secret %s" (include "baton.redisName" $)) -}}
{{- end -}}
{{- if and .enabled (or .external.url .external.existingSecret) -}}
{{- fail "redis: use either the chart's own (redis.enabled) or an external one, not both" -}}
{{- end -}}
{{- end -}}
{{- with .Values.head.faultTolerance -}}
{{- if and .enabled $.Values.redis.enabled (not .redisAddress) (not $.Values.redis.persistence.enabled) -}}
{{- fail "head.faultTolerance: a Redis without persistence loses the head's state; set redis.persistence.enabled, or redisAddress of another one" -}}
{{- end -}}
{{- if and .enabled .redisAddress (not (regexMatch ":[0-9]+$" .redisAddress)) -}}
{{- fail (printf "head.faultTolerance.redisAddress: %s has no port; give HOST:PORT" .redisAddress) -}}
{{- end -}}
{{- if and .enabled (not $.Values.redis.enabled) (not .redisAddress) -}}
{{- fail "head.faultTolerance.redisAddress: missing; give HOST:PORT of the Redis that keeps the head's state" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checkCache" -}}
{{- with .Values.modelCache -}}
{{- if and (eq .type "hostPath") (not .hostPath) -}}
{{- fail "modelCache.hostPath: missing; give the directory on the nodes" -}}
{{- end -}}
{{- if and .job.enabled (ne .type "pvc") -}}
{{- fail (printf "modelCache.job: it fills a volume that pods share, and %s is not shared; set modelCache.type=pvc" .type) -}}
{{- end -}}
{{- if and .pvc.existingClaim (ne .type "pvc") -}}
{{- fail (printf "modelCache.pvc.existingClaim: %s would not be used, because modelCache.type is %s; set modelCache.type=pvc" .pvc.existingClaim .type) -}}
{{- end -}}
{{- if and .hostPath (ne .type "hostPath") -}}
{{- fail (printf "modelCache.hostPath: %s would not be used, because modelCache.type is %s; set modelCache.type=hostPath" .hostPath .type) -}}
{{- end -}}
{{- if and (eq .type "pvc") (not .pvc.existingClaim) (not (has "ReadWriteMany" .pvc.accessModes)) (not .pvc.singleNode) -}}
{{- fail "modelCache.pvc.accessModes: routers and workers on several nodes mount this volume, and ReadWriteOnce allows one node; use a storage class with ReadWriteMany, modelCache.type=hostPath or emptyDir, or set modelCache.pvc.singleNode if the cluster has one node" -}}
{{- end -}}
{{- $isPath := hasPrefix "/" $.Values.model -}}
{{- if and $.Values.revision (or $isPath (eq $.Values.model "bundled")) -}}
{{- fail (printf "revision: it is for a hub id, not for the model %s" $.Values.model) -}}
{{- end -}}
{{- $tokenizer := $.Values.tokenizer -}}
{{- if and $.Values.tokenizerRevision (or (not $tokenizer) (hasPrefix "/" $tokenizer)) -}}
{{- fail "tokenizerRevision: it is for a hub id in tokenizer" -}}
{{- end -}}
{{- if and $tokenizer (not (hasPrefix "/" $tokenizer)) (or (not .fetch) .readOnly) -}}
{{- fail (printf "tokenizer: %s cannot be downloaded with modelCache.%s; give a path that already has it" $tokenizer (ternary "readOnly" "fetch=false" .readOnly)) -}}
{{- end -}}
{{- if and (not .fetch) (not $isPath) -}}
{{- fail (printf "modelCache.fetch: without it, model must be a path that already has the model, not %s" $.Values.model) -}}
{{- end -}}
{{- if and .readOnly (not $isPath) -}}
{{- fail (printf "modelCache.readOnly: nothing can be downloaded to such a volume, so model must be a path that already has the model, not %s" $.Values.model) -}}
{{- end -}}
{{- $isMounted := false -}}
{{- range concat ($.Values.prefill.extraVolumeMounts | default list) ($.Values.decode.extraVolumeMounts | default list) -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $.Values.model) -}}{{- $isMounted = true -}}{{- end -}}
{{- end -}}
{{- if and $isPath (not $isMounted) (eq .type "emptyDir") (hasPrefix (printf "%s/" .mountPath) $.Values.model) -}}
{{- fail (printf "model: %s is in modelCache.mountPath, and an emptyDir is empty; set modelCache.type to pvc or hostPath for a volume that has the model, or give a hub id" $.Values.model) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Values that Kubernetes or the workers would refuse only after the installation, or that are probably in another unit. */}}
{{- define "baton.checkValues" -}}
{{- $v := .Values -}}
{{- range $name, $image := dict "image" $v.image "redis.image" $v.redis.image "router.image" $v.router.image "head.image" $v.head.image "modelCache.job.image" $v.modelCache.job.image -}}
{{- $repository := ($image | default dict).repository | default "" -}}
{{- if regexMatch "[@:][^/]*$" $repository -}}
{{- fail (printf "%s.repository: %s has a tag or a digest; give them as %s.tag or %s.digest" $name $repository $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.rdma.enabled (eq $v.transport "tcp") -}}
{{- fail "transport: tcp would leave the RDMA devices of rdma.enabled unused; set transport to auto or nixl, or rdma.enabled=false" -}}
{{- end -}}
{{- if gt (float64 $v.slo.ttftSeconds) 160.0 -}}
{{- fail (printf "slo.ttftSeconds: %v seconds; give at most 160 (is it in milliseconds?)" $v.slo.ttftSeconds) -}}
{{- end -}}
{{- if gt (float64 $v.slo.tpotSeconds) 10.0 -}}
{{- fail (printf "slo.tpotSeconds: %v seconds; give at most 10 (is it in milliseconds?)" $v.slo.tpotSeconds) -}}
{{- end -}}
{{- if and (or $v.lora.modules $v.lora.dir) (not $v.lora.enabled) -}}
{{- fail "lora.enabled: it is false, but lora.modules or lora.dir is set; set it to true" -}}
{{- end -}}
{{- if and $v.kvStores.keyFile (not (or $v.kvStores.disk $v.kvStores.url)) -}}
{{- fail "kvStores.keyFile: there is nothing to encrypt; set kvStores.disk or kvStores.url too" -}}
{{- end -}}
{{- if eq $v.device "cpu" -}}
{{- range $name := list "prefill" "decode" -}}
{{- $pool := index $v $name -}}
{{- $engine := $pool.engine | default dict -}}
{{- $own := not (kindIs "invalid" $engine.kvCacheMemoryBytes) -}}
{{- $size := ternary $engine.kvCacheMemoryBytes ($v.engine | default dict).kvCacheMemoryBytes $own -}}
{{- $key := printf "%sengine.kvCacheMemoryBytes" (ternary (printf "%s." $name) "" $own) -}}
{{- if not (kindIs "invalid" $size) -}}
{{- if ge (float64 (include "baton.bytes" $size)) (mulf $pool.memoryGi 1073741824) -}}
{{- fail (printf "%s: %v of KV do not fit into a replica's memory, %v GiB (%s.memoryGi), next to the model" $key $size $pool.memoryGi $name) -}}
{{- end -}}
{{- else if gt (int $pool.nodesPerWorker) 1 -}}
{{- fail (printf "%s.engine.kvCacheMemoryBytes: missing; nodes without GPUs have no common default, so with %s.nodesPerWorker set the size for a rank" $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checkRouter" -}}
{{- $v := .Values -}}
{{- if ne (hasKey $v.router.config "targetTtftMs") (hasKey $v.router.config "targetTpotMs") -}}
{{- fail "router.config: targetTtftMs needs targetTpotMs, and targetTpotMs needs targetTtftMs" -}}
{{- end -}}
{{- if and $v.keda.enabled $v.router.autoscaling.enabled -}}
{{- fail "keda: KEDA and router.autoscaling (an HPA) would both size the routers; switch one off" -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.keda.prometheusAddress) -}}
{{- fail "keda.prometheusAddress: missing; KEDA queries Prometheus for the number of completions that wait in the routers. Give its URL, such as http://prometheus-operated.monitoring.svc:9090" -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.monitoring.serviceMonitor.enabled) (not $v.keda.scrapedElsewhere) -}}
{{- fail "keda: this chart does not make Prometheus scrape the routers' metrics, so KEDA would find none; set monitoring.serviceMonitor.enabled, or keda.scrapedElsewhere if Prometheus scrapes them already, with the labels namespace and service" -}}
{{- end -}}
{{- if and $v.keda.enabled (gt (int $v.keda.minReplicas) (int $v.keda.maxReplicas)) -}}
{{- fail "keda: minReplicas is more than maxReplicas" -}}
{{- end -}}
{{- if and $v.router.autoscaling.enabled (gt (int $v.router.autoscaling.minReplicas) (int $v.router.autoscaling.maxReplicas)) -}}
{{- fail "router.autoscaling: minReplicas is more than maxReplicas" -}}
{{- end -}}
{{- if and $v.tests.enabled $v.auth.apiKeys.existingSecret (not $v.auth.clientKey.existingSecret) -}}
{{- fail "tests: `helm test` needs a key, because routers require one; set auth.clientKey.existingSecret, or tests.enabled=false" -}}
{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: missing; name the Gateway" -}}
{{- end -}}
{{- range $api, $on := dict "gateway.networking.k8s.io/v1/HTTPRoute" $v.httpRoute.enabled "gateway.networking.k8s.io/v1/BackendTLSPolicy" (include "baton.backendTLSPolicy" .) "keda.sh/v1alpha1/ScaledObject" $v.keda.enabled "cert-manager.io/v1/Certificate" (or $v.tls.internal.certManager.enabled $v.tls.https.certManager.enabled) -}}
{{- if and $on $v.ray.checkOperator (not ($.Capabilities.APIVersions.Has $api)) -}}
{{- fail (printf "this cluster has no %s, which the values need" $api) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checkTLS" -}}
{{- range $name := list "internal" "https" -}}
{{- $tls := index $.Values.tls $name -}}
{{- if and $tls.enabled (not $tls.existingSecret) (not $tls.certManager.enabled) -}}
{{- fail (printf "tls.%s: it needs a certificate; set existingSecret or certManager.enabled" $name) -}}
{{- end -}}
{{- if and $tls.certManager.enabled (not $tls.enabled) -}}
{{- fail (printf "tls.%s.certManager: it issues a certificate that would not be used; set tls.%s.enabled" $name $name) -}}
{{- end -}}
{{- if and $tls.certManager.enabled $tls.existingSecret -}}
{{- fail (printf "tls.%s: a certificate is given by existingSecret or issued by certManager, not both" $name) -}}
{{- end -}}
{{- if and $tls.certManager.enabled (not $tls.certManager.issuerRef.name) -}}
{{- fail (printf "tls.%s.certManager.issuerRef.name: missing" $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The ingress controller has to be configured for HTTPS to the routers: by default it sends plaintext, and every request
     fails. */}}
{{- define "baton.checkBackendTLS" -}}
{{- $v := .Values -}}
{{- if and $v.ingress.enabled $v.tls.https.enabled (not $v.ingress.backendTLSElsewhere) -}}
{{- $told := false -}}
{{- range $key, $_ := merge (dict) $v.ingress.annotations $v.router.service.annotations -}}
{{- if regexMatch "(backend-protocol|app-protocols|secure-backends|server-ssl|serversscheme)$" $key -}}{{- $told = true -}}{{- end -}}
{{- end -}}
{{- if not $told -}}
{{- fail "ingress: with tls.https routers use HTTPS, and the controller would send them plaintext; set its own annotation for that, in ingress.annotations (nginx.ingress.kubernetes.io/backend-protocol: HTTPS) or in router.service.annotations (traefik.ingress.kubernetes.io/service.serversscheme: https), or set ingress.backendTLSElsewhere" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Fails for routers without Baton's metrics if the autoscaler of routers, alerts or dashboards query these. */}}
{{- define "baton.checkMetricsNames" -}}
{{- $v := .Values -}}
{{- $names := (fromYaml (include "baton.options" $v.router.config)).metrics_names -}}
{{- range $key, $isOn := dict "keda" $v.keda.enabled "monitoring.rules" $v.monitoring.rules.enabled "monitoring.dashboards" $v.monitoring.dashboards.enabled -}}
{{- if and $isOn (eq (toString $names) "vllm") -}}
{{- fail (printf "router.config.metricsNames: vllm, but %s queries metrics by Baton's names; set both" $key) -}}
{{- end -}}
{{- end -}}
{{- end }}
