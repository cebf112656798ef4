// The parts of Swagger UI that docs.ts uses; its package has no types.

declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  interface SwaggerRequest {
    headers?: Record<string, string>;
  }
  interface SwaggerOptions {
    url: string;
    dom_id: string;
    deepLinking: boolean;
    validatorUrl: null;
    requestInterceptor(request: SwaggerRequest): SwaggerRequest;
  }
  export default function SwaggerUI(options: SwaggerOptions): void;
}
