{{- define "baton.dnsEgress" -}}
- ports:
    {{- range .Values.networkPolicy.dnsPorts }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end }}

{{- define "baton.peers" -}}
podSelector:
  matchLabels:
    {{- include "baton.selectorLabels" .root | nindent 4 }}
  matchExpressions:
    - {key: app.kubernetes.io/component, operator: In, values: {{ toJson .components }}}
{{- end }}

{{- define "baton.redisEgress" -}}
{{- if .Values.redis.enabled -}}
- to:
    - {{ include "baton.peers" (dict "root" . "components" (list "redis")) | nindent 6 | trim }}
  ports:
    - {port: 6379}
{{- else -}}
- to:
    {{- toYaml .Values.networkPolicy.externalRedis | nindent 4 }}
  ports:
    - {port: {{ .Values.redis.external.port }}}
{{- end -}}
{{- end }}

{{/* The collector of traces. */}}
{{- define "baton.tracingEgress" -}}
{{- with .Values.tracing.endpoint -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
- to:
    {{- toYaml $.Values.networkPolicy.tracing | nindent 4 }}
  ports:
    - {port: {{ default (ternary "4317" "4318" (hasPrefix "grpc" $url.scheme)) $port }}}
{{- end -}}
{{- end }}

{{/* Ports of the hub, and of the mirror if its URL has another. */}}
{{- define "baton.hubPorts" -}}
{{- $ports := list -}}
{{- range .Values.networkPolicy.hubPorts -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- with .Values.modelCache.hubEndpoint -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $ports = append $ports (int (default (ternary "80" "443" (eq $url.scheme "http")) $port)) -}}
{{- end -}}
{{- toYaml (uniq $ports) -}}
{{- end }}

{{- define "baton.hubEgress" -}}
- to:
    {{- toYaml .Values.networkPolicy.hub | nindent 4 }}
  ports:
    {{- range fromYamlArray (include "baton.hubPorts" .) }}
    - {port: {{ . }}}
    {{- end }}
{{- end }}

{{/* For serving pods: a policy applies to pods, not containers, so a pod that downloads may connect to the hub for as long as
     it lives. */}}
{{- define "baton.servingHubEgress" -}}
{{- if and (include "baton.asksHub" .) (not (include "baton.jobFetches" .)) -}}
{{- include "baton.hubEgress" . -}}
{{- end -}}
{{- end }}

{{- define "baton.networkPolicyHead" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "baton.metadata" (dict "root" .root "name" (print (include "baton.fullname" .root) "-" .name)) | nindent 2 }}
spec:
  policyTypes: [Ingress, Egress]
  {{- include "baton.peers" . | nindent 2 }}
{{- end }}

{{- define "baton.networkPolicies" -}}
{{- $ray := list "head" "prefill" "decode" -}}
{{- $workers := list "prefill" "decode" -}}
{{- $np := .Values.networkPolicy -}}
{{- $tcp := printf "{port: %v, endPort: %v}" (int .Values.ray.ephemeralPorts.first) (int .Values.ray.ephemeralPorts.last) }}
{{ include "baton.networkPolicyHead" (dict "root" . "name" "router" "components" (list "router")) }}
  ingress:
    - ports:
        - {port: http}
        {{- if .Values.router.grpc }}
        - {port: grpc}
        {{- end }}
      {{- if $np.clients }}
      from:
        {{- toYaml (concat $np.clients $np.monitoring) | nindent 8 }}
        - {{ include "baton.peers" (dict "root" . "components" (list "test")) | nindent 10 | trim }}
      {{- end }}
  egress:
    {{- include "baton.dnsEgress" . | nindent 4 }}
    {{- include "baton.redisEgress" . | nindent 4 }}
    {{- include "baton.servingHubEgress" . | nindent 4 }}
    {{- include "baton.tracingEgress" . | nindent 4 }}
    - to:
        - {{ include "baton.peers" (dict "root" . "components" $workers) | nindent 10 | trim }}
      ports:
        - {{ $tcp }}
---
{{ include "baton.networkPolicyHead" (dict "root" . "name" "workers" "components" $workers) }}
  ingress:
    - from:
        - {{ include "baton.peers" (dict "root" . "components" (list "router")) | nindent 10 | trim }}
      ports:
        - {{ $tcp }}
    - from: # Ray's own ports, and KV
        - {{ include "baton.peers" (dict "root" . "components" $ray) | nindent 10 | trim }}
    {{- with $np.monitoring }}
    - from:
        {{- toYaml . | nindent 8 }}
      ports:
        - {port: metrics}
    {{- end }}
  egress:
    {{- include "baton.dnsEgress" . | nindent 4 }}
    {{- include "baton.redisEgress" . | nindent 4 }}
    {{- include "baton.servingHubEgress" . | nindent 4 }}
    {{- include "baton.tracingEgress" . | nindent 4 }}
    - to:
        - {{ include "baton.peers" (dict "root" . "components" $ray) | nindent 10 | trim }}
---
{{ include "baton.networkPolicyHead" (dict "root" . "name" "head" "components" (list "head")) }}
  ingress:
    - from:
        - {{ include "baton.peers" (dict "root" . "components" $ray) | nindent 10 | trim }}
    - from:
        {{- toYaml $np.operator | nindent 8 }}
      ports:
        - {port: dashboard}
    {{- with $np.monitoring }}
    - from:
        {{- toYaml . | nindent 8 }}
      ports:
        - {port: metrics}
    {{- end }}
  egress:
    {{- include "baton.dnsEgress" . | nindent 4 }}
    {{- include "baton.redisEgress" . | nindent 4 }}
    {{- with .Values.head.faultTolerance }}
    {{- if and .enabled .redisAddress }}
    - to:
        {{- toYaml $np.externalRedis | nindent 8 }}
      ports:
        - {port: {{ regexFind "[0-9]+$" .redisAddress }}}
    {{- end }}
    {{- end }}
    - to:
        - {{ include "baton.peers" (dict "root" . "components" $ray) | nindent 10 | trim }}
    - to: # the autoscaler
        {{- toYaml $np.apiServer | nindent 8 }}
      ports:
        {{- range $np.apiServerPorts }}
        - {port: {{ . }}}
        {{- end }}
{{- if .Values.redis.enabled }}
---
{{ include "baton.networkPolicyHead" (dict "root" . "name" "redis" "components" (list "redis")) }}
  ingress:
    - from:
        - {{ include "baton.peers" (dict "root" . "components" (append $ray "router")) | nindent 10 | trim }}
      ports:
        - {port: redis}
  egress: []
{{- end }}
{{- if include "baton.jobFetches" . }}
---
{{ include "baton.networkPolicyHead" (dict "root" . "name" "fetch" "components" (list "fetch")) }}
  ingress: []
  {{- if include "baton.asksHub" . }}
  egress:
    {{- include "baton.dnsEgress" . | nindent 4 }}
    {{- include "baton.hubEgress" . | nindent 4 }}
  {{- else }}
  egress: []
  {{- end }}
{{- end }}
{{- if .Values.tests.enabled }}
---
{{ include "baton.networkPolicyHead" (dict "root" . "name" "test" "components" (list "test")) }}
  ingress: []
  egress:
    {{- include "baton.dnsEgress" . | nindent 4 }}
    - to:
        - {{ include "baton.peers" (dict "root" . "components" (list "router")) | nindent 10 | trim }}
      ports:
        - {port: http}
{{- end }}
{{- end }}
