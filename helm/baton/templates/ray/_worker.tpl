{{/* A pool's worker group. Its pods follow the replicas that Serve wants, so its minimum is zero and its maximum is the most
     that the pool may ever have: the operator does not change the bounds of a running cluster. */}}
{{- define "baton.workerGroup" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $values := index $root.Values $name -}}
{{- $pool := fromYaml (include "baton.pool" .) -}}
groupName: {{ $name }}
replicas: {{ $pool.startPods }}
minReplicas: 0
maxReplicas: {{ $values.maxPods }}
numOfHosts: 1
idleTimeoutSeconds: {{ $values.idleTimeoutSeconds }}
scaleStrategy: {}
labels:
  pool: {{ $name }}
rayStartParams:
  object-store-memory: {{ mul (int $root.Values.ray.objectStoreMi) 1048576 | quote }}
resources:
  CPU: {{ $pool.podCPUs | int | quote }}
  {{- if $pool.podGPUs }}
  GPU: {{ $pool.podGPUs | int | quote }}
  {{- end }}
template:
  metadata:
    {{- include "baton.rayMetadata" (dict "root" $root "component" $name "values" $values) | nindent 4 }}
  spec:
    restartPolicy: Never
    serviceAccountName: {{ include "baton.plainServiceAccount" $root }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    terminationGracePeriodSeconds: {{ include "baton.podGraceSeconds" $root }}
    securityContext:
      {{- include "baton.podSecurityContext" $root | nindent 6 }}
      sysctls: # ports of servers that take any free port; the network policies allow these
        - name: net.ipv4.ip_local_port_range
          value: {{ printf "%v %v" (int $root.Values.ray.ephemeralPorts.first) (int $root.Values.ray.ephemeralPorts.last) | quote }}
    {{- include "baton.pullSecrets" $root | nindent 4 }}
    {{- include "baton.placement" $values | nindent 4 }}
    {{- with $values.runtimeClassName }}
    runtimeClassName: {{ . }}
    {{- end }}
    {{- with $values.gpuClaimTemplate }}
    resourceClaims:
      - {name: gpus, resourceClaimTemplateName: {{ . }}}
    {{- end }}
    {{- with $values.topologySpreadConstraints }}
    topologySpreadConstraints:
      {{- include "baton.topologySpread" (dict "root" $root "component" $name "constraints" .) | nindent 6 }}
    {{- end }}
    {{- include "baton.modelContainers" (dict "root" $root "image" (include "baton.image" $root)) | nindent 4 }}
    containers:
      {{- include "baton.workerContainer" (dict "root" $root "name" $name "values" $values "pool" $pool) | nindent 6 }}
      {{- with $values.extraContainers }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    volumes:
      {{- include "baton.rayVolumes" (dict "root" $root "shmGi" $values.shmGi) | nindent 6 }}
      {{- include "baton.modelVolume" (dict "root" $root) | nindent 6 }}
      {{- if $root.Values.hugepages.enabled }}
      - name: hugepages
        emptyDir:
          medium: {{ printf "HugePages-%s" $root.Values.hugepages.size }}
      {{- end }}
      {{- with $values.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}

{{- define "baton.workerEnv" -}}
{{- include "baton.rayEnv" (dict "root" .) }}
{{- if .Values.rdma.enabled }}
{{- range $key, $value := .Values.rdma.ucx }}
- name: UCX_{{ $key }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.workerContainer" -}}
{{- $root := .root -}}
- name: ray-worker
  image: {{ include "baton.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  ports:
    - {name: metrics, containerPort: 8080}
  env:
    {{- $own := include "baton.workerEnv" $root }}
    {{- include "baton.env" (dict "own" $own "extra" .values.extraEnv "key" (printf "%s.extraEnv" .name)) | nindent 4 }}
  resources:
    {{- $size := dict "cpu" (printf "%dm" (int64 .pool.podMillis)) "memory" (printf "%dMi" (int64 .pool.podMemoryMi)) -}}
    {{- if and .pool.podGPUs (not .values.gpuClaimTemplate) }}{{ $_ := set $size $root.Values.gpuResource (int .pool.podGPUs) }}{{ end -}}
    {{- if $root.Values.rdma.enabled }}{{ $_ := set $size $root.Values.rdma.resource (int $root.Values.rdma.count) }}{{ end -}}
    {{- if $root.Values.hugepages.enabled }}{{ $_ := set $size (printf "hugepages-%s" $root.Values.hugepages.size) $root.Values.hugepages.amount }}{{ end -}}
    {{- $size = merge $size .values.extraResources }}
    {{- $storage := include "baton.ephemeralStorage" (dict "root" $root "sizes" (list $root.Values.tmpSizeLimit)) }}
    {{- include "baton.resources" (dict "resources" (dict "requests" $size "limits" $size) "storage" $storage) | nindent 4 }}
    {{- if .values.gpuClaimTemplate }}
    claims: [{name: gpus}]
    {{- end }}
  securityContext:
    {{- $context := fromYaml (include "baton.containerSecurityContext" $root) -}}
    {{- if $root.Values.rdma.enabled }}{{ $_ := set $context.capabilities "add" (list "IPC_LOCK") }}{{ end }}
    {{- toYaml $context | nindent 4 }}
  {{- include "baton.rayProbes" $root | nindent 2 }}
  lifecycle:
    preStop: # if the pod is evicted, its workers hand their requests over before Ray ends them
      exec:
        command:
          - sh
          - -c
          - >-
            baton drain --force --missing-ok --registry-file /etc/baton/registry/url --host "$POD_IP"
            --timeout-s {{ $root.Values.drainTimeoutSeconds }}
            {{- if $root.Values.tls.internal.enabled }}
            --tls-cert /etc/baton/tls/tls.crt --tls-key /etc/baton/tls/tls.key
            --tls-ca /etc/baton/tls/ca.crt --tls-server-name {{ $root.Values.tls.internal.serverName }}
            {{- end }}
  volumeMounts:
    {{- include "baton.rayMounts" $root | nindent 4 }}
    - name: models
      mountPath: {{ $root.Values.modelCache.mountPath }}
      readOnly: true
    {{- if $root.Values.hugepages.enabled }}
    - name: hugepages
      mountPath: /dev/hugepages
    {{- end }}
    {{- with .values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
