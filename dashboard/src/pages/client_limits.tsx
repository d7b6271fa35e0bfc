/** How fast a client may be, as gauges of what its buckets hold now. */
import type { Clock } from "../format/time";
import type { JSX } from "preact";
import { usePath } from "../api/queries";
import type { AppAnswer, LimitList, BucketState, OrgAnswer } from "../api/wire";
import { ratio } from "../format/money";
import { count } from "../format/numbers";
import { Count } from "../parts/amounts";
import { Answer, Empty, Panel } from "../parts/panel";
import { Away } from "../parts/time";

const EVERY_MS = 2000;

export function Limits(how: {
  path: string;
  zone: Clock;
  settings: OrgAnswer | AppAnswer;
}): JSX.Element {
  const limits = usePath<LimitList>(`${how.path}/limits`, ["settings"], EVERY_MS);
  return (
    <Panel title="Limits" note="tokens left, updated every 2 s">
      <Answer of={limits}>
        {({ resources }) =>
          Object.keys(resources).length === 0 ? (
            <Empty title="No limit is set">Calls are not rate-limited.</Empty>
          ) : (
            <div class="gauges">
              {Object.entries(resources).map(([resource, states]) => (
                <section key={resource}>
                  <h3>{resource === "*" ? "every model" : resource}</h3>
                  {Object.entries(states).map(([name, state]) => (
                    <Gauge
                      key={name}
                      name={name}
                      resource={resource}
                      state={state}
                      zone={how.zone}
                    />
                  ))}
                </section>
              ))}
            </div>
          )
        }
      </Answer>
    </Panel>
  );
}

function Gauge(how: {
  name: string;
  resource: string;
  state: BucketState;
  zone: Clock;
}): JSX.Element {
  const { name, state } = how;
  const left = Math.max(0, Math.min(1, ratio(state.remaining, state.capacity)));
  const tone = left <= 0 ? "over" : left < 0.2 ? "near" : "fine";
  return (
    <div class="gauge">
      <span class="gauge-name">{name}</span>
      <span
        class={`gauge-bar ${tone}`}
        role="meter"
        aria-label={`${name} of ${how.resource}`}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.floor(left * 100)}
        aria-valuetext={`${count(state.remaining)} of ${count(state.capacity)} left`}
      >
        <span style={{ width: `${left * 100}%` }} />
      </span>
      <span class="gauge-value">
        <Count value={state.remaining} /> <span class="note">of {count(state.capacity)}</span>
      </span>
      <span class="note gauge-full">
        {left >= 1 ? (
          "full"
        ) : (
          <>
            full <Away at={state.resets_at} zone={how.zone} />
          </>
        )}
      </span>
    </div>
  );
}
