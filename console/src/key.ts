// The admin key: kept for the life of the tab, and sent in a header.

const NAME = "baton-console-key";

export function storedKey(): string {
  return sessionStorage.getItem(NAME) ?? "";
}

export function storeKey(key: string): void {
  if (key) sessionStorage.setItem(NAME, key);
  else sessionStorage.removeItem(NAME);
}

export function keyHeaders(): Record<string, string> {
  const key = storedKey();
  return key ? { authorization: `Bearer ${key}` } : {};
}
