// How much of something is taken: drawn as SVG, because the page's policy allows no style attributes.

export interface Piece {
  share: number;
  look: "running" | "model" | "waiting";
  title?: string;
}

export function Bar({ pieces, label }: { pieces: Piece[]; label: string }) {
  let from = 0;
  return (
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={label}>
      {pieces.map((piece, index) => {
        const width = Math.max(0, Math.min(100 - from, piece.share * 100));
        const x = from;
        from += width;
        return (
          <rect key={index} x={x} y={0} width={width} height={10} class={`fill-${piece.look}`}>
            {piece.title && <title>{piece.title}</title>}
          </rect>
        );
      })}
    </svg>
  );
}

export function Meter({ name, held, total, unit }: { name: string; held: number; total: number; unit: string }) {
  const told = `${Number(held.toFixed(1))} of ${Number(total.toFixed(1))} ${unit}`;
  return (
    <div class="meter">
      <span class="dim">{name}</span>
      <div class="bar">
        <Bar pieces={[{ share: total ? held / total : 0, look: "running" }]} label={`${name}: ${told} held`} />
      </div>
      <span class="dim right">{told}</span>
    </div>
  );
}
