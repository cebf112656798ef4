{{/* Without the password, which comes from the Secret, through the environment. */}}
{{- define "baton.redisConfig" -}}
bind * -::*
protected-mode no
dir /data
maxmemory-policy noeviction
{{- if .Values.redis.persistence.enabled }}
appendonly yes
appendfsync everysec
{{- else }}
save ""
appendonly no
{{- end }}
{{- end }}

{{/* Changes if Redis has to restart: for another file, or another password if the chart knows it. */}}
{{- define "baton.redisChecksum" -}}
{{- $password := "" -}}
{{- if not .Values.redis.auth.existingSecret -}}{{- $password = include "baton.redisPassword" . -}}{{- end -}}
{{- list (include "baton.redisConfig" .) (include "baton.redisSecret" .) $password | join "\n" | sha256sum -}}
{{- end }}
