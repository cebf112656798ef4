// The sign of the project.

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <g transform="rotate(-45 16 16)">
        <rect class="mark-prefill" x="1" y="12" width="13" height="8" rx="4" />
        <rect class="mark-decode" x="18" y="12" width="13" height="8" rx="4" />
        <rect class="mark-handover" x="11.5" y="12" width="9" height="8" />
      </g>
    </svg>
  );
}
