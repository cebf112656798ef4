// The description of the API as a page. Requests have the admin key of the console, if this tab has one.

import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import { keyHeaders } from "./key";

SwaggerUI({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null, // would send the description to another host
  requestInterceptor: (request) => {
    request.headers = { ...keyHeaders(), ...request.headers };
    return request;
  },
});
