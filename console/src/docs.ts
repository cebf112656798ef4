// The description of the API as a page. Requests have the key that was entered here, or else the console's, if this tab has one.

import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import { keyHeaders } from "./key";

SwaggerUI({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null, // would send the description to another host
  requestInterceptor: (request) => {
    if (!hasKey(request.headers ?? {})) request.headers = { ...request.headers, ...keyHeaders() };
    return request;
  },
});

function hasKey(headers: Record<string, string>): boolean {
  return Object.keys(headers).some((name) => ["authorization", "x-api-key"].includes(name.toLowerCase()));
}
