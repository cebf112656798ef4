{{/* Sizes of a pool's replicas, pods and worker group, computed from its values. */}}
{{- define "baton.pool" -}}
{{- $root := .root -}}
{{- $pool := index $root.Values .name -}}
{{- $replicasPerPod := int $pool.replicasPerPod -}}
{{- $nodes := int $pool.nodesPerWorker -}}
{{- $gpus := ternary 0 (int $pool.tensorParallelSize) (eq $root.Values.device "cpu") -}}
{{- $nodeGPUs := div $gpus $nodes -}}
{{- $size := int (ternary $pool.minReplicas $pool.replicas (or $root.Values.autoscaling.enabled (kindIs "invalid" $pool.replicas))) -}}
{{- $most := ternary (int $pool.maxReplicas) $size $root.Values.autoscaling.enabled -}}
{{- $least := ternary (int $pool.minReplicas) $size $root.Values.autoscaling.enabled -}}
name: {{ .name }}
size: {{ $size }}
least: {{ $least }}
most: {{ $most }}
startPods: {{ ternary 0 (mul $nodes (ceil (divf $size $replicasPerPod))) (not (empty (include "baton.scalesToZero" $root))) }}
leastPods: {{ mul $nodes (ceil (divf $least $replicasPerPod)) }}
mostPods: {{ mul $nodes (ceil (divf $most $replicasPerPod)) }}
groupSize: {{ include "baton.groupSize" $pool }}
gpus: {{ $gpus }}
nodeGPUs: {{ $nodeGPUs }}
podGPUs: {{ mul $nodeGPUs $replicasPerPod }}
podCPUs: {{ ceil (mulf $pool.cpu $replicasPerPod) }}
podMillis: {{ int64 (mulf (addf (mulf $pool.cpu $replicasPerPod) $pool.overheadCPU) 1000) }}
podMemoryMi: {{ int64 (mulf (addf (mulf $pool.memoryGi $replicasPerPod) $pool.overheadMemoryGi) 1024) }}
{{- end }}

{{/* Serve's time limit for the shutdown of a replica, as in the application; a pod's grace period has to be longer. */}}
{{- define "baton.shutdownSeconds" -}}{{ add (int .Values.drainTimeoutSeconds) 37 }}{{- end }}
{{- define "baton.podGraceSeconds" -}}{{ add (int (include "baton.shutdownSeconds" .)) 30 }}{{- end }}

{{/* Number of workers that share a model's experts; the ranks of a tensor-parallel worker share them among themselves. */}}
{{- define "baton.groupSize" -}}
{{- ternary 1 (int .expertParallelSize) (gt (int .tensorParallelSize) 1) -}}
{{- end }}

{{/* Whether a pool's workers share a model's experts. */}}
{{- define "baton.hasGroups" -}}
{{- if or (gt (int (include "baton.groupSize" .Values.prefill)) 1) (gt (int (include "baton.groupSize" .Values.decode)) 1) -}}true{{- end -}}
{{- end }}

{{/* Properties that all workers of a group share. Serve cannot change them one worker at a time, so a change has to make the
     operator start another cluster. */}}
{{- define "baton.groupIdentity" -}}
{{- $values := index .root.Values .name -}}
{{- $engine := merge (dict) (fromYaml (include "baton.options" $values.engine)) (fromYaml (include "baton.options" .root.Values.engine)) -}}
{{- $eplb := ternary (printf "eplb %v/%v/%v" .root.Values.eplb.numRedundantExperts .root.Values.eplb.stepInterval .root.Values.eplb.numNodes) (printf "redundant %v" .root.Values.eplb.numRedundantExperts) .root.Values.eplb.enabled -}}
{{- $overrides := ternary "" (printf " with %v" $engine.hf_overrides) (empty $engine.hf_overrides) -}}
{{- printf "%v ranks (%v at least) of %s%s, dtype %v, block_size %v, %s" $values.expertParallelSize .root.Values.minExpertRanks (include "baton.modelPath" .root) $overrides ($engine.dtype | default "auto") ($engine.block_size | default "as usual") $eplb -}}
{{- end }}

{{/* Mutual TLS of all connections between processes, with the files of `baton.rayMounts`. */}}
{{- define "baton.rayTLS" -}}
{{- if .Values.tls.internal.enabled }}
tls_cert: /etc/baton/tls/tls.crt
tls_key: /etc/baton/tls/tls.key
tls_ca: /etc/baton/tls/ca.crt
tls_server_name: {{ .Values.tls.internal.serverName }}
{{- end }}
{{- end }}

{{/* Options of the stores below the KV caches. */}}
{{- define "baton.kvStores" -}}
{{- range $key, $option := dict "hostMemoryBytes" "kv_host_memory_bytes" "disk" "kv_disk" "diskBytes" "kv_disk_bytes" "url" "kv_store" "bytes" "kv_store_bytes" "ttlSeconds" "kv_store_ttl_s" "keyFile" "kv_store_key_file" }}
{{- with index $.Values.kvStores $key }}
{{ $option }}: {{ toJson (ternary (int64 .) . (kindIs "float64" .)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Engine options of LoRA adapters. */}}
{{- define "baton.loraEngine" -}}
{{- if .Values.lora.enabled }}
enable_lora: true
{{- range $key, $option := dict "maxLoras" "max_loras" "maxLoraRank" "max_lora_rank" "maxCpuLoras" "max_cpu_loras" }}
{{- with index $.Values.lora $key }}
{{ $option }}: {{ int64 . }}
{{- end }}
{{- end }}
{{- with .Values.lora.dtype }}
lora_dtype: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The arguments of the application: the keys of `baton serve`'s file and docs/ray.md's. */}}
{{- define "baton.rayArguments" -}}
model: {{ include "baton.modelPath" . | quote }}
{{- if ne .Values.logLevel "info" }}
log_level: {{ .Values.logLevel }}
{{- end }}
{{- if ne .Values.logFormat "text" }}
log_format: {{ .Values.logFormat }}
{{- end }}
{{- with include "baton.tokenizerPath" . }}
tokenizer: {{ . | quote }}
{{- end }}
served_model_name: {{ include "baton.servedModelName" . | quote }}
registry_file: /etc/baton/registry/url
router: false
transport: {{ .Values.transport }}
drain_timeout_s: {{ .Values.drainTimeoutSeconds }}
{{- if .Values.strict }}
strict: true
{{- end }}
{{- with .Values.maxStepSeconds }}
max_step_s: {{ . }}
{{- end }}
{{- if not (kindIs "invalid" .Values.maxPinnedFraction) }}
max_pinned_fraction: {{ .Values.maxPinnedFraction }}
{{- end }}
{{- with .Values.tracing.endpoint }}
otlp_traces_endpoint: {{ . | quote }}
{{- end }}
{{- include "baton.kvStores" . }}
{{- include "baton.rayTLS" . }}
engine:
  {{- $engine := fromYaml (include "baton.options" .Values.engine) }}
  {{- toYaml (merge (dict "device" .Values.device) $engine (fromYaml (include "baton.loraEngine" .))) | nindent 2 }}
{{- if include "baton.hasGroups" . }}
{{- if .Values.eplb.enabled }}
enable_eplb: true
eplb_step_interval: {{ .Values.eplb.stepInterval }}
eplb_num_nodes: {{ .Values.eplb.numNodes }}
{{- end }}
{{- with .Values.eplb.numRedundantExperts }}
num_redundant_experts: {{ . }}
{{- end }}
min_expert_ranks: {{ .Values.minExpertRanks }}
rendezvous_ray: # it uses none of Ray's CPUs; there is always a node with decode workers
  label_selector:
    pool: decode
{{- end }}
{{- range $name := list "prefill" "decode" }}
{{- $values := index $.Values $name }}
{{- $pool := fromYaml (include "baton.pool" (dict "root" $ "name" $name)) }}
{{ $name }}: {{ $pool.groupSize }} # creates the deployment; its size is set below
{{- if gt (int $values.expertParallelSize) 1 }}
{{ ternary "prefill_expert_parallel" "expert_parallel" (eq $name "prefill") }}: {{ $values.expertParallelSize }}
{{- end }}
{{- if gt (int $values.tensorParallelSize) 1 }}
{{ ternary "prefill_tensor_parallel" "tensor_parallel" (eq $name "prefill") }}: {{ $values.tensorParallelSize }}
{{- end }}
{{- with fromYaml (include "baton.options" $values.engine) }}
{{ $name }}_engine:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{ $name }}_ray:
  num_cpus: {{ $values.cpu }}
  num_gpus: {{ $pool.nodeGPUs }}
  memory_bytes: {{ int64 (mulf $values.memoryGi 1073741824) }}
  {{- if gt (int $values.nodesPerWorker) 1 }}
  nodes_per_worker: {{ $values.nodesPerWorker }}
  {{- else }}
  max_replicas_per_node: {{ $values.replicasPerPod }}
  {{- end }}
  label_selector:
    pool: {{ $name }}
  start_timeout_s: {{ $values.startTimeoutSeconds }}
  health_check_period_s: {{ $values.healthCheckPeriodSeconds }}
  health_check_timeout_s: {{ $values.healthCheckTimeoutSeconds }}
{{- end }}
{{- end }}

{{/* Sizes are outside the arguments, and the planner's settings outside this config: a change of an argument, or of the
     policy's arguments, restarts every replica. */}}
{{- define "baton.serveConfig" -}}
proxy_location: Disabled
{{- if eq .Values.logFormat "json" }}
logging_config: {encoding: JSON}
{{- end }}
applications:
  - name: baton
    route_prefix: null
    import_path: baton.deployment.ray.app:build
    args:
      {{- include "baton.rayArguments" . | nindent 6 }}
    deployments:
      {{- range $name := list "prefill" "decode" }}
      {{- $pool := fromYaml (include "baton.pool" (dict "root" $ "name" $name)) }}
      - name: {{ $name }}
        {{- if $.Values.autoscaling.enabled }}
        autoscaling_config:
          min_replicas: {{ ternary 0 $pool.least (not (empty (include "baton.scalesToZero" $))) }}
          max_replicas: {{ $pool.most }}
          upscale_delay_s: 0
          downscale_delay_s: 0
        {{- else }}
        num_replicas: {{ $pool.size }}
        {{- end }}
      {{- end }}
    {{- if .Values.autoscaling.enabled }}
    autoscaling_policy:
      policy_function: baton.deployment.ray.scaling:PoolsPolicy
      policy_kwargs:
        {{- include "baton.policyArguments" . | nindent 8 }}
    {{- end }}
{{- end }}

{{/* The planner's settings, which it reads again when they change. */}}
{{- define "baton.scalingSettings" -}}
{{- $prefill := fromYaml (include "baton.pool" (dict "root" . "name" "prefill")) -}}
{{- $decode := fromYaml (include "baton.pool" (dict "root" . "name" "decode")) -}}
budget_gpus: {{ include "baton.budgetGPUs" $ }}
slo:
  ttft_s: {{ $.Values.slo.ttftSeconds }}
  tpot_s: {{ $.Values.slo.tpotSeconds }}
  quantile: {{ $.Values.slo.quantile }}
prefill:
  gpus_per_replica: {{ max 1 $prefill.gpus }}
  min_replicas: {{ max 1 $prefill.least }}
decode:
  gpus_per_replica: {{ max 1 $decode.gpus }}
  min_replicas: {{ max 1 $decode.least }}
{{- range $name, $option := dict "upscaleDelaySeconds" "upscale_delay_s" "downscaleDelaySeconds" "downscale_delay_s" "idleSeconds" "idle_s" "startSeconds" "start_s" "flipSeconds" "flip_s" }}
{{- $value := index $.Values.autoscaling $name }}
{{- if not (kindIs "invalid" $value) }}
{{ $option }}: {{ ternary (int64 $value) $value (eq (float64 (int64 $value)) (float64 $value)) }}
{{- end }}
{{- end }}
start_timeout_s: {{ include "baton.startTimeoutSeconds" . }}
drain_s: {{ $.Values.drainTimeoutSeconds }}
{{- end }}

{{/* Whether pools may have no worker. */}}
{{- define "baton.scalesToZero" -}}
{{- if and .Values.autoscaling.enabled (not (kindIs "invalid" .Values.autoscaling.idleSeconds)) -}}true{{- end -}}
{{- end }}

{{/* Time after which a worker that does not start is given up; not while a worker of either pool may still be loading. */}}
{{- define "baton.startTimeoutSeconds" -}}
{{- $longest := max (int .Values.prefill.startTimeoutSeconds) (int .Values.decode.startTimeoutSeconds) -}}
{{- ternary $longest .Values.autoscaling.startTimeoutSeconds (kindIs "invalid" .Values.autoscaling.startTimeoutSeconds) -}}
{{- end }}

{{- define "baton.policyArguments" -}}
registry_file: /etc/baton/registry/url
model: {{ include "baton.servedModelName" $ | quote }}
settings_file: /etc/baton/scaling/settings.yaml
{{- include "baton.rayTLS" . }}
{{- with .Values.autoscaling }}
{{- if .clusterBudget.enabled }}
kubernetes:
  resource: {{ $.Values.gpuResource }}
  namespace: {{ $.Release.Namespace }}
  own_namespace_only: true
  {{- range $name := list "prefill" "decode" }}
  {{- $values := index $.Values $name }}
  {{ $name }}:
    labels:
      {{- include "baton.selectorLabels" $ | nindent 6 }}
      app.kubernetes.io/component: {{ $name }}
    gpus_per_pod: {{ (fromYaml (include "baton.pool" (dict "root" $ "name" $name))).podGPUs }}
    {{- with $values.nodeSelector }}
    node_selector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $values.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}
{{- end }}

{{/* GPUs of both pools at most; on CPUs a replica counts as one. */}}
{{- define "baton.budgetGPUs" -}}
{{- $prefill := fromYaml (include "baton.pool" (dict "root" . "name" "prefill")) -}}
{{- $decode := fromYaml (include "baton.pool" (dict "root" . "name" "decode")) -}}
{{- $all := add (mul $prefill.most (max 1 $prefill.gpus)) (mul $decode.most (max 1 $decode.gpus)) -}}
{{- ternary $all .Values.autoscaling.budgetGPUs (kindIs "invalid" .Values.autoscaling.budgetGPUs) | int -}}
{{- end }}
