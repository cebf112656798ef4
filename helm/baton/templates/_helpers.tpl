{{- define "baton.name" -}}
{{- default .Chart.Name .Values.nameOverride -}}
{{- end }}

{{/* Name of all objects. Not truncated, because a truncated name could collide: _checks.tpl refuses one that is too long. */}}
{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := include "baton.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- end }}

{{- define "baton.routerName" -}}{{ include "baton.fullname" . }}-router{{- end }}
{{- define "baton.redisName" -}}{{ include "baton.fullname" . }}-redis{{- end }}

{{/* Labels of all pods of a release. Not app.kubernetes.io/name, which the operator sets on Ray's pods. */}}
{{- define "baton.selectorLabels" -}}
app.kubernetes.io/part-of: baton
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selectorLabels" . }}
app.kubernetes.io/name: {{ include "baton.name" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Metadata of an object, or of a pod if it has no name: root, name, component, labels, annotations, isClusterWide. */}}
{{- define "baton.metadata" -}}
{{- with .name -}}
name: {{ . }}
{{ if not $.isClusterWide -}}
namespace: {{ $.root.Release.Namespace }}
{{ end -}}
{{- end -}}
labels:
  {{- include "baton.labels" .root | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with merge (dict) (.labels | default dict) (.root.Values.commonLabels | default dict) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Image of the workers. */}}
{{- define "baton.image" -}}
{{- with .Values.image -}}
{{- $repository := required "image.repository: missing; there is no published image of Baton: build one (docker buildx bake), push it, and give its repository. For a local cluster (kind load docker-image baton:TAG) that is image.repository=baton" .repository -}}
{{- if .digest -}}
{{ $repository }}@{{ .digest }}
{{- else -}}
{{ $repository }}:{{ .tag | default (printf "%s-%s" $.Chart.AppVersion (ternary "cpu" "cuda" (eq $.Values.device "cpu"))) }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Image of pods without a device: root, and the component's own `image`. By default the image for CPUs, or that of the
     workers if its tag or digest is set. */}}
{{- define "baton.plainImage" -}}
{{- $workers := .root.Values.image -}}
{{- $own := .image | default dict -}}
{{- $repository := $own.repository | default $workers.repository -}}
{{- if $own.digest -}}
{{ $repository }}@{{ $own.digest }}
{{- else if or $own.repository $own.tag (not (or $workers.tag $workers.digest)) -}}
{{ $repository }}:{{ $own.tag | default (printf "%s-cpu" .root.Chart.AppVersion) }}
{{- else -}}
{{ include "baton.image" .root }}
{{- end -}}
{{- end }}

{{- define "baton.redisImage" -}}
{{- with .Values.redis.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Path of the model in every pod. */}}
{{- define "baton.modelPath" -}}
{{- $model := required "model: missing; give a hub id (Qwen/Qwen3-0.6B), a path such as /models/x, or bundled" .Values.model -}}
{{- if eq $model "bundled" -}}
{{ .Values.modelCache.mountPath }}/baton-bundled
{{- else if hasPrefix "/" $model -}}
{{ trimSuffix "/" $model }}
{{- else -}}
{{ .Values.modelCache.mountPath }}/{{ $model }}{{ include "baton.atRevision" .Values.revision }}
{{- end -}}
{{- end }}

{{/* Path of the tokenizer in every pod; empty if it is the model's. */}}
{{- define "baton.tokenizerPath" -}}
{{- with .Values.tokenizer -}}
{{- if hasPrefix "/" . -}}
{{ trimSuffix "/" . }}
{{- else -}}
{{ $.Values.modelCache.mountPath }}/tokenizers/{{ . }}{{ include "baton.atRevision" $.Values.tokenizerRevision }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* End of the directory of a revision: other revisions have other directories, since pods may still read them. */}}
{{- define "baton.atRevision" -}}
{{- with . -}}@{{ replace "/" "--" . }}{{- end -}}
{{- end }}

{{- define "baton.servedModelName" -}}
{{- if .Values.servedModelName -}}
{{ .Values.servedModelName }}
{{- else if eq .Values.model "bundled" -}}
baton-bundled
{{- else if hasPrefix "/" .Values.model -}}
{{ base .Values.model }}
{{- else -}}
{{ .Values.model }}
{{- end -}}
{{- end }}

{{/* Whether a pod has to download the model itself ("true" or ""). */}}
{{- define "baton.fetchesModel" -}}
{{- if and .Values.modelCache.fetch (not (hasPrefix "/" .Values.model)) -}}true{{- end -}}
{{- end }}

{{/* The same of another tokenizer. */}}
{{- define "baton.fetchesTokenizer" -}}
{{- if and .Values.modelCache.fetch .Values.tokenizer (not (hasPrefix "/" .Values.tokenizer)) -}}true{{- end -}}
{{- end }}

{{- define "baton.fetches" -}}
{{- if or (include "baton.fetchesModel" .) (include "baton.fetchesTokenizer" .) -}}true{{- end -}}
{{- end }}

{{/* Whether the download connects to the hub. */}}
{{- define "baton.asksHub" -}}
{{- if or (and (include "baton.fetchesModel" .) (ne .Values.model "bundled")) (include "baton.fetchesTokenizer" .) -}}true{{- end -}}
{{- end }}

{{/* Whether a job downloads it for all pods, which wait for the job. */}}
{{- define "baton.jobFetches" -}}
{{- if and .Values.modelCache.job.enabled (include "baton.fetches" .) -}}true{{- end -}}
{{- end }}

{{- define "baton.headServiceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (printf "%s-head" (include "baton.fullname" .)) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{/* For pods that never connect to the API server. */}}
{{- define "baton.plainServiceAccount" -}}
{{- if .Values.serviceAccount.create -}}{{ include "baton.fullname" . }}{{- else -}}default{{- end -}}
{{- end }}

{{/* The Secret with the password of the chart's own Redis, and its URL. */}}
{{- define "baton.redisSecret" -}}{{ .Values.redis.auth.existingSecret | default (include "baton.redisName" .) }}{{- end }}

{{/* The generated password: the existing one, or a new one for all templates of this rendering. */}}
{{- define "baton.redisPassword" -}}
{{- if not (hasKey .Values.redis "madePassword") -}}
{{- $found := dig "data" "password" "" (lookup "v1" "Secret" .Release.Namespace (include "baton.redisName" .) | default dict) -}}
{{- $_ := set .Values.redis "madePassword" (ternary (randAlphaNum 32) ($found | b64dec) (empty $found)) -}}
{{- end -}}
{{- .Values.redis.madePassword -}}
{{- end }}

{{/* The registry's URL as a file, and for the chart's own Redis its password, which the URL refers to: a password that changes
     needs no restart of routers and workers. */}}
{{- define "baton.registryVolume" -}}
- name: registry
  secret:
    secretName: {{ include "baton.registrySecret" . }}
    defaultMode: 0440
    items:
      - {key: {{ include "baton.registryKey" . }}, path: url}
      {{- if .Values.redis.enabled }}
      - {key: password, path: password}
      {{- end }}
{{- end }}

{{- define "baton.registrySecret" -}}
{{- if .Values.redis.enabled -}}{{ include "baton.redisSecret" . }}{{- else -}}{{ .Values.redis.external.existingSecret | default (printf "%s-registry" (include "baton.fullname" .)) }}{{- end -}}
{{- end }}

{{- define "baton.registryKey" -}}
{{- if .Values.redis.enabled -}}
{{ ternary "address" "url" (empty .Values.redis.auth.existingSecret) }}
{{- else -}}
{{ ternary "url" .Values.redis.external.key (empty .Values.redis.external.existingSecret) }}
{{- end -}}
{{- end }}

{{- define "baton.tlsSecret" -}}
{{- .Values.tls.internal.existingSecret | default (printf "%s-tls" (include "baton.fullname" .)) -}}
{{- end }}

{{- define "baton.httpsSecret" -}}
{{- .Values.tls.https.existingSecret | default (printf "%s-https" (include "baton.fullname" .)) -}}
{{- end }}

{{/* Whether the Gateway is told that routers speak HTTPS ("true" or ""). */}}
{{- define "baton.backendTLSPolicy" -}}
{{- if and .Values.httpRoute.enabled .Values.httpRoute.backendTLS.enabled .Values.tls.https.enabled -}}true{{- end -}}
{{- end }}

{{- define "baton.scheme" -}}{{ ternary "https" "http" .Values.tls.https.enabled }}{{- end }}

{{/* Bytes of a size as Kubernetes or an option of Baton's has it, such as 1048576, 1.5GB or 4Gi. */}}
{{- define "baton.bytes" -}}
{{- if kindIs "string" . -}}
{{- $number := regexFind "^[0-9.]+(e[0-9]+)?" (lower .) -}}
{{- $units := dict "" 1.0 "k" 1e3 "m" 1e6 "g" 1e9 "t" 1e12 "p" 1e15 "ki" 1024.0 "mi" 1048576.0 "gi" 1073741824.0 "ti" 1099511627776.0 "pi" 1125899906842624.0 -}}
{{- mulf $number (index $units (trimPrefix $number (lower .) | trimSuffix "b")) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{/* Options in Baton's own spelling, those that are given. */}}
{{- define "baton.options" -}}
{{- $options := dict -}}
{{- range $name, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- if kindIs "map" $value -}}
{{- $_ := set $options (snakecase $name) (toJson $value) -}}
{{- else -}}
{{- $_ := set $options (snakecase $name) (ternary (int64 $value) $value (and (kindIs "float64" $value) (eq (float64 (int64 $value)) $value))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $options -}}
{{- end }}

{{/* A container's resources, with a request for disk unless they have one: resources, storage. */}}
{{- define "baton.resources" -}}
{{- $resources := deepCopy (.resources | default dict) -}}
{{- $given := merge (dict) ($resources.requests | default dict) ($resources.limits | default dict) -}}
{{- if and .storage (not (hasKey $given "ephemeral-storage")) -}}
{{- $_ := set $resources "requests" (merge (dict "ephemeral-storage" .storage) ($resources.requests | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{- define "baton.podSecurityContext" -}}
{{ include "baton.podUser" .Values.podSecurity }}
{{- end }}

{{/* User and groups of a pod; the cluster assigns an id that is null. */}}
{{- define "baton.podUser" -}}
runAsNonRoot: true
{{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- with index $ $key }}
{{ $key }}: {{ int64 . }}
{{- end }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "baton.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The root file system is read-only, so all files are written to /tmp. */}}
{{- define "baton.writableEnv" -}}
- name: HOME
  value: /tmp
- name: TMPDIR
  value: /tmp
- name: HF_HOME
  value: /tmp/huggingface
{{- end }}

{{/* The image requests all GPUs of a node from NVIDIA's runtime: without this, pods without GPUs would see those of others. */}}
{{- define "baton.noGPUEnv" -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: void
{{- end }}

{{/* Variables that the chart sets (a text), and those of the values: `own`, `extra`, and the values' key. */}}
{{- define "baton.env" -}}
{{- $seen := dict -}}
{{- range fromYamlArray .own -}}{{- $_ := set $seen .name true -}}{{- end -}}
{{- range .extra -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "%s: %s is set twice; the chart sets it, or it is in the list twice" $.key .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- trim .own }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Spread over nodes; a constraint without a selector of its own counts the component's pods. */}}
{{- define "baton.topologySpread" -}}
{{- $labels := merge (dict "app.kubernetes.io/component" .component) (fromYaml (include "baton.selectorLabels" .root)) -}}
{{- range .constraints }}
- {{ toYaml (ternary . (merge (dict "labelSelector" (dict "matchLabels" $labels)) .) (hasKey . "labelSelector")) | nindent 2 | trim }}
{{- end }}
{{- end }}
