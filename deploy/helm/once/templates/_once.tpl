{{- define "once.labels" -}}
app.kubernetes.io/name: {{ .Release.Name }}
{{- end }}

{{- define "once.sqlite" -}}
{{- if hasPrefix "sqlite:" .Values.store }}true{{ end }}
{{- end }}

{{- define "once.replicas" -}}
{{- if hasKey .Values "replicas" }}{{ int .Values.replicas }}{{ else if include "once.sqlite" . }}1{{ else }}2{{ end }}
{{- end }}

{{- /* A value of TOML: JSON's text in quotes is TOML's too, and numbers here are whole ones. */ -}}
{{- define "once.toml" -}}
{{- if kindIs "slice" . }}[{{ range $i, $one := . }}{{ if $i }}, {{ end }}{{ include "once.toml" $one }}{{ end }}]
{{- else if kindIs "string" . }}{{ toRawJson . }}
{{- else if kindIs "bool" . }}{{ . }}
{{- else }}{{ int64 . }}
{{- end }}
{{- end }}

{{- define "once.settings" -}}
listen = "0.0.0.0:8080"
{{- if eq .Values.form "sidecar" }}
upstream = "http://127.0.0.1:{{ int .Values.app.port }}"
{{- else }}
upstream = {{ include "once.toml" .Values.upstream }}
{{- end }}
store = {{ include "once.toml" .Values.store }}
# The kubelet asks the pod's address, not 127.0.0.1.
admin = "0.0.0.0:{{ int .Values.admin.port }}"
admin-token-file = "/etc/once/admin/{{ .Values.admin.tokenSecret.key }}"
{{- range $name, $value := omit .Values.settings "route" }}
{{ $name }} = {{ include "once.toml" $value }}
{{- end }}
{{- range $route := .Values.settings.route }}

[[route]]
{{- range $name, $value := $route }}
{{ $name }} = {{ include "once.toml" $value }}
{{- end }}
{{- end }}
{{- end }}

{{- define "once.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532  # May read the token{{ if include "once.sqlite" . }}, and write the volume{{ end }}.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "once.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "once.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Whose pods these are, and on which nodes. */ -}}
{{- define "once.placing" -}}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.Values $name }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "once.secretVolumes" -}}
{{- range .Values.secretMounts }}
- name: {{ .name }}
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
    {{- with .keys }}
    items:
      {{- range . }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}

{{- define "once.container" -}}
- name: once
  image: {{ include "once.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if eq .Values.form "sidecar" }}
  restartPolicy: Always
  {{- end }}
  args: [proxy, --config, /etc/once/proxy/proxy.toml]
  {{- with .Values.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - {name: http, containerPort: 8080}
    - {name: admin, containerPort: {{ int .Values.admin.port }}}
  {{- if eq .Values.form "gateway" }}
  lifecycle:
    preStop: {sleep: {seconds: {{ int .Values.preStopSeconds }}}}  # Until no more new connections come.
  {{- end }}
  readinessProbe:
    httpGet: {path: /readyz, port: admin}
    {{- toYaml .Values.probes.readiness | nindent 4 }}
  livenessProbe:  # Not /readyz: a store that is gone is not mended by a restart.
    httpGet: {path: /healthz, port: admin}
    {{- toYaml .Values.probes.liveness | nindent 4 }}
  resources:  # No limit for the CPU: a throttled proxy renews its leases late.
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- include "once.security" . | nindent 4 }}
  volumeMounts:
    - {name: settings, mountPath: /etc/once/proxy, readOnly: true}
    - {name: admin, mountPath: /etc/once/admin, readOnly: true}
    {{- range .Values.secretMounts }}
    - {name: {{ .name }}, mountPath: /etc/once/{{ .name }}, readOnly: true}
    {{- end }}
    {{- if include "once.sqlite" . }}
    - {name: records, mountPath: /var/lib/once}
    {{- end }}
{{- end }}
