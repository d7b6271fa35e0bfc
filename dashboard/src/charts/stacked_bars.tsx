/** Stacked bars over time, drawn by uPlot, with what a mouse shows also by keys and in words. */
import type { JSX } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Int } from "../api/json";
import { usdExact, usdShort } from "../format/money";
import { count, countShort } from "../format/numbers";
import { dayName, moment } from "../format/time";
import { useCell } from "../state/cell";
import { theme } from "../state/theme";
import { colorOf, colorValue, cssValue } from "./colors";
import type { Stack } from "./series";

export interface ChartProps {
  /** What it shows, for screen readers. */
  caption: string;
  stack: Stack;
  unit: "usd" | "tokens";
  by: "hour" | "day";
  zone: string;
  /** Where the rows of a bucket are. */
  hrefOf: (bucket: Stack["buckets"][number]) => string;
}

export function StackedBars(props: ChartProps): JSX.Element {
  const { stack, unit, by, zone } = props;
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const id = useId();
  const shade = useCell(theme);
  const data = useMemo(() => heaped(stack), [stack]);
  const names = stack.series.map(({ name }) => name).join("\n");

  // A chart is rebuilt for other series or colours; new numbers are only put into it.
  // `data` is set by the effect below
  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    const made = new uPlot(options(props, box, setAt), data, box);
    chart.current = made;
    const watch = new ResizeObserver(() => {
      made.setSize({ width: box.clientWidth, height: box.clientHeight });
    });
    watch.observe(box);
    return () => {
      watch.disconnect();
      made.destroy();
      chart.current = null;
    };
  }, [names, unit, by, zone, shade]);
  useEffect(() => {
    chart.current?.setData(data);
  }, [data]);

  const move = (to: number): void => {
    const index = Math.max(0, Math.min(stack.buckets.length - 1, to));
    const bucket = stack.buckets[index];
    const made = chart.current;
    if (made === null || bucket === undefined) return;
    made.setCursor({ left: made.valToPos(bucket.atMs / 1000, "x"), top: 0 });
    setAt(index);
  };
  const press = (event: KeyboardEvent): void => {
    const last = stack.buckets.length - 1;
    const steps: Record<string, number> = {
      ArrowLeft: (at ?? last + 1) - 1,
      ArrowRight: (at ?? -1) + 1,
      Home: 0,
      End: last,
    };
    const to = steps[event.key];
    if (to !== undefined) {
      event.preventDefault();
      move(to);
    } else if (event.key === "Enter") open();
  };
  const open = (): void => {
    const bucket = at === null ? undefined : stack.buckets[at];
    if (bucket !== undefined) location.hash = props.hrefOf(bucket);
  };
  const bucket = at === null ? undefined : stack.buckets[at];

  return (
    <figure class="chart">
      <div
        class="plot"
        ref={place}
        tabIndex={0}
        role="group"
        aria-roledescription="chart"
        aria-label={`${props.caption}. Arrow keys move, Enter shows the calls.`}
        aria-describedby={id}
        onKeyDown={press}
        onClick={open}
      />
      <figcaption id={id} aria-live="polite">
        {bucket === undefined ? (
          <Legend stack={stack} />
        ) : (
          <Reading {...props} bucket={bucket} index={at ?? 0} />
        )}
      </figcaption>
    </figure>
  );
}

function Legend({ stack }: { stack: Stack }): JSX.Element {
  return (
    <ul class="legend">
      {stack.series.map(({ name }) => (
        <li key={name}>
          <span class={`dot s${colorOf(name)}`} />
          {name === "" ? "(none)" : name}
        </li>
      ))}
    </ul>
  );
}

/** What one bucket has in it, to the last digit. */
function Reading(
  props: ChartProps & { bucket: Stack["buckets"][number]; index: number },
): JSX.Element {
  const { stack, bucket, index, unit } = props;
  const shown = stack.series.filter(({ values }) => values[index] !== null);
  return (
    <ul class="legend reading">
      <li>
        <a href={props.hrefOf(bucket)}>{bucketName(bucket, props.by, props.zone)}</a>
      </li>
      {shown.length === 0 ? <li>nothing</li> : null}
      {shown.map(({ name, values }) => (
        <li key={name}>
          <span class={`dot s${colorOf(name)}`} />
          {name === "" ? "(none)" : name}{" "}
          <data value={values[index]?.toString() ?? ""}>{exact(values[index] ?? 0, unit)}</data>
        </li>
      ))}
    </ul>
  );
}

export function bucketName(
  bucket: Stack["buckets"][number],
  by: "hour" | "day",
  zone: string,
): string {
  return by === "day" ? dayName(bucket.key) : moment(zone, bucket.atMs);
}

function exact(value: Int, unit: ChartProps["unit"]): string {
  return unit === "usd" ? usdExact(value) : count(value);
}

/**
 * Each series on top of those before it, the highest first: it is drawn first, and the others over it.
 * For drawing only; no number of these is ever shown.
 */
function heaped({ buckets, series }: Stack): uPlot.AlignedData {
  const heaps: number[][] = [];
  let below: number[] = buckets.map(() => 0);
  for (const { values } of series) {
    below = below.map((height, at) => height + Number(values[at] ?? 0));
    heaps.unshift(below);
  }
  return [buckets.map(({ atMs }) => atMs / 1000), ...heaps];
}

function options(
  { stack, unit, by, zone }: ChartProps,
  box: HTMLElement,
  setAt: (index: number | null) => void,
): uPlot.Options {
  const size = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
  const font = `${size * 0.78}px ${getComputedStyle(document.body).fontFamily}`;
  const bars = uPlot.paths.bars?.({ size: [0.72, size * 5] });
  const stepSecs = by === "hour" ? 3600 : 86_400;
  const axis = {
    stroke: cssValue("--text-faint"),
    font,
    grid: { stroke: cssValue("--line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    padding: [size * 0.6, size * 0.4, 0, 0],
    tzDate: (secs) => uPlot.tzDate(new Date(secs * 1000), by === "day" ? "UTC" : zone),
    legend: { show: false },
    cursor: {
      y: false,
      points: { show: false },
      drag: { setScale: false, x: false, y: false },
    },
    scales: {
      x: {
        time: true,
        range: (_u, min, max) => [min - stepSecs * 0.6, max + stepSecs * 0.6],
      },
      y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.06 : 1] },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: by === "day" ? size * 1.9 : size * 3.1,
        space: size * 5,
        values:
          by === "day"
            ? (_u, splits) =>
                splits.map((secs) => dayName(new Date(secs * 1000).toISOString().slice(0, 10)))
            : [
                [3600 * 24, "{D} {MMM}", null, null, null, null, null, null, 1],
                [3600, "{HH}:{mm}", null, null, "\n{D} {MMM}", null, null, null, 1],
              ],
        incrs:
          by === "day"
            ? [1, 2, 7, 14, 28].map((days) => days * 86_400)
            : [1, 2, 3, 6, 12, 24].map((h) => h * 3600),
      },
      {
        ...axis,
        size: size * 4.6,
        space: size * 2.6,
        values: (_u, splits) =>
          splits.map((value) => (unit === "usd" ? tick(value) : countShort(Math.round(value)))),
      },
    ],
    series: [
      {},
      ...[...stack.series].reverse().map(({ name }) => ({
        label: name,
        fill: colorValue(colorOf(name)),
        stroke: colorValue(colorOf(name)),
        width: 0,
        points: { show: false },
        ...(bars === undefined ? {} : { paths: bars }),
      })),
    ],
    hooks: {
      setCursor: [
        (plot) => {
          const index = plot.cursor.idx;
          setAt(index === null || index === undefined || plot.cursor.left === -10 ? null : index);
        },
      ],
    },
  };
}

/** A mark of the axis, short: it is a round number and not an amount of an answer. */
function tick(micros: number): string {
  if (micros === 0) return "$0";
  if (micros >= 10_000) return usdShort(Math.round(micros), "up").replace(/\.00$/, "");
  return `$${(micros / 1_000_000).toFixed(6).replace(/0+$/, "")}`;
}
