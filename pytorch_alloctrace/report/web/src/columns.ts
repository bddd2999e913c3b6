// Decoder of report/page/columns.py: variable-length integers of values or differences.

/** Reference to a column in the JSON: byte offset, number of values, 1 if they are differences. */
export type ColumnRef = [begin: number, count: number, differences: number];

/** Stored value of unknown numbers. Only for columns without negative values. */
export const MISSING = -1;

export class Columns {
  constructor(private readonly bytes: Uint8Array) {}

  read(ref: ColumnRef): Float64Array {
    const [begin, count, differences] = ref;
    const values = new Float64Array(count);
    const bytes = this.bytes;
    let at = begin;
    let sum = 0;
    for (let i = 0; i < count; i++) {
      let byte = bytes[at++];
      let value = byte & 0x7f;
      // No shifts: they truncate to 32 bits.
      for (let scale = 128; byte & 0x80; scale *= 128) {
        byte = bytes[at++];
        value += (byte & 0x7f) * scale;
      }
      const signed = value % 2 ? -(value + 1) / 2 : value / 2;
      sum = differences ? sum + signed : signed;
      values[i] = sum;
    }
    return values;
  }
}

export async function unpack(text: string): Promise<{ manifest: unknown; columns: Columns }> {
  const binary = atob(text.trim());
  const compressed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) compressed[i] = binary.charCodeAt(i);
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  const jsonLength = new DataView(data.buffer).getUint32(0, true);
  const manifest: unknown = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + jsonLength)));
  return { manifest, columns: new Columns(data.subarray(4 + jsonLength)) };
}
