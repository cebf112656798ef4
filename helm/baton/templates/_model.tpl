{{/* The volume of the model cache: root, and for a router `withoutWeights`. */}}
{{- define "baton.modelVolume" -}}
- name: models
  {{- with .root.Values.modelCache }}
  {{- if eq .type "pvc" }}
  persistentVolumeClaim:
    claimName: {{ .pvc.existingClaim | default (printf "%s-models" (include "baton.fullname" $.root)) }}
    {{- if .readOnly }}
    readOnly: true
    {{- end }}
  {{- else if eq .type "hostPath" }}
  hostPath:
    path: {{ .hostPath }}
    type: Directory
  {{- else }}
  emptyDir:
    sizeLimit: {{ ternary "1Gi" .sizeLimit (not (not $.withoutWeights)) }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* Disk that a pod's emptyDirs may use, as a request of its main container: root, sizes, and for a router `withoutWeights`.
     Without it, pods are placed on nodes whose disks are full, and evicted there. */}}
{{- define "baton.ephemeralStorage" -}}
{{- if .root.Values.ephemeralStorageRequests -}}
{{- $sizes := .sizes -}}
{{- with .root.Values.modelCache -}}
{{- if and (eq .type "emptyDir") (not $.withoutModel) -}}
{{- $sizes = append $sizes (ternary "1Gi" .sizeLimit (not (not $.withoutWeights))) -}}
{{- end -}}
{{- end -}}
{{- $bytes := 0.0 -}}
{{- range $sizes -}}{{- $bytes = addf $bytes (float64 (include "baton.bytes" .)) -}}{{- end -}}
{{- printf "%dMi" (int64 (ceil (divf $bytes 1048576))) -}}
{{- end -}}
{{- end }}

{{/* Arguments of `baton fetch`: root, and `tokenizer` for the tokenizer instead of the model. */}}
{{- define "baton.fetchArguments" -}}
{{- $values := .root.Values -}}
{{- if .tokenizer }}
- {{ $values.tokenizer }}
- {{ include "baton.tokenizerPath" .root }}
{{- with $values.tokenizerRevision }}
- --revision={{ . }}
{{- end }}
- --without-weights
{{- else }}
- {{ $values.model }}
- {{ include "baton.modelPath" .root }}
{{- with $values.revision }}
- --revision={{ . }}
{{- end }}
{{- if .withoutWeights }}
- --without-weights
{{- end }}
{{- end }}
{{- end }}

{{/* Downloads the model, or the `tokenizer`, into the cache, unless it is there: of several containers with one cache, only
     one downloads. */}}
{{- define "baton.fetchContainer" -}}
{{- $root := .root -}}
- name: fetch{{ ternary "-tokenizer" "" (not (not .tokenizer)) }}
  image: {{ .image }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command:
    - baton
    - fetch
    {{- include "baton.fetchArguments" . | nindent 4 }}
  env:
    {{- $own := include "baton.fetchEnv" $root }}
    {{- include "baton.env" (dict "own" $own "extra" $root.Values.modelCache.extraEnv "key" "modelCache.extraEnv") | nindent 4 }}
  resources:
    {{- toYaml $root.Values.modelCache.resources | nindent 4 }}
  securityContext:
    {{- include "baton.containerSecurityContext" $root | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: models
      mountPath: {{ $root.Values.modelCache.mountPath }}
{{- end }}

{{/* Waits until the job has downloaded it. */}}
{{- define "baton.awaitContainer" -}}
- name: await-{{ ternary "tokenizer" "model" (not (not .tokenizer)) }}
  image: {{ .image }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command:
    - baton
    - fetch
    {{- include "baton.fetchArguments" (omit . "withoutWeights") | nindent 4 }}
    - --wait
  env:
    {{- include "baton.writableEnv" .root | nindent 4 }}
    {{- include "baton.noGPUEnv" .root | nindent 4 }}
  resources:
    {{- toYaml .root.Values.modelCache.resources | nindent 4 }}
  securityContext:
    {{- include "baton.containerSecurityContext" .root | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: models
      mountPath: {{ .root.Values.modelCache.mountPath }}
      readOnly: true
{{- end }}

{{/* The containers that download: root, image, and for a router `withoutWeights`. */}}
{{- define "baton.fetchContainers" -}}
{{- if include "baton.fetchesModel" .root -}}
{{ include "baton.fetchContainer" . }}
{{ end -}}
{{- if include "baton.fetchesTokenizer" .root -}}
{{ include "baton.fetchContainer" (dict "root" .root "image" .image "tokenizer" true) }}
{{- end -}}
{{- end }}

{{/* Init containers that provide a serving pod's model: root, image, and for a router `withoutWeights`. */}}
{{- define "baton.modelContainers" -}}
{{- if include "baton.jobFetches" .root }}
initContainers:
  {{- if include "baton.fetchesModel" .root }}
  {{- include "baton.awaitContainer" . | nindent 2 }}
  {{- end }}
  {{- if include "baton.fetchesTokenizer" .root }}
  {{- include "baton.awaitContainer" (dict "root" .root "image" .image "tokenizer" true) | nindent 2 }}
  {{- end }}
{{- else if include "baton.fetches" .root }}
initContainers:
  {{- include "baton.fetchContainers" . | trim | nindent 2 }}
{{- end }}
{{- end }}

{{- define "baton.fetchEnv" -}}
{{- include "baton.writableEnv" . }}
{{ include "baton.noGPUEnv" . }}
{{- with .Values.modelCache }}
{{- with .hubEndpoint }}
- name: HF_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- if .hubToken.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .hubToken.existingSecret }}
      key: {{ .hubToken.key }}
{{- end }}
{{- end }}
{{- end }}
