// LoRA adapters of a model, and at how many workers each is loaded.

import { count } from "./format";
import { Section, TableFrame } from "./parts";
import type { ModelRow } from "./state";

export function Adapters({ model }: { model: ModelRow }) {
  if (!model.num_adapters) return null;
  const note = model.num_adapters > model.adapters.length ? `The ${model.adapters.length} of ${count(model.num_adapters)} in the most slots.` : undefined;
  return (
    <Section title="LoRA adapters" note={note}>
      <TableFrame label="LoRA adapters">
        <table class="stacked">
          <thead>
            <tr>
              <th scope="col">Adapter</th>
              <th scope="col" class="right">
                Workers
              </th>
              <th scope="col" class="right">
                In a slot at
              </th>
            </tr>
          </thead>
          <tbody>
            {model.adapters.map((adapter) => (
              <tr key={adapter.name}>
                <th scope="row">
                  <code>{adapter.name}</code>
                </th>
                <td class="right num" data-label="Workers">{count(adapter.loaded)}</td>
                <td class="right num" data-label="In a slot at">{count(adapter.resident)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </TableFrame>
    </Section>
  );
}
