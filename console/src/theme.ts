// Light or dark: the system's choice until the reader makes one.

export type Theme = "system" | "light" | "dark";

const NAME = "baton-console-theme";
const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

export function storedTheme(): Theme {
  const value = localStorage.getItem(NAME);
  return value === "light" || value === "dark" ? value : "system";
}

export function applyTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem(NAME, theme);
}

export function nextTheme(theme: Theme): Theme {
  return NEXT[theme];
}
