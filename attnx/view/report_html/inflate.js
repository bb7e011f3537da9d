// Inflate raw deflate streams (RFC 1951), for browsers without DecompressionStream.

const LENGTH_BASE = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const LENGTH_EXTRA = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const FAR_BASE = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577];
const FAR_EXTRA = [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];
const CODE_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

// Canonical Huffman codes: how many there are of each length, and the symbols in order of code.
function huffman(lengths) {
  const counts = new Uint16Array(16), starts = new Uint16Array(16), symbols = new Uint16Array(lengths.length);
  for (const length of lengths) counts[length]++;
  counts[0] = 0;
  for (let at = 1; at < 16; at++) starts[at] = starts[at - 1] + counts[at - 1];
  for (let symbol = 0; symbol < lengths.length; symbol++) if (lengths[symbol]) symbols[starts[lengths[symbol]]++] = symbol;
  return { counts, symbols };
}

function inflate(source) {
  let at = 0, held = 0, count = 0, size = 0, out = new Uint8Array(Math.max(1024, source.length * 4));
  const bits = (need) => {
    while (count < need) { held |= source[at++] << count; count += 8; }
    const value = held & ((1 << need) - 1);
    held >>>= need; count -= need;
    return value;
  };
  const symbol = ({ counts, symbols }) => {
    let code = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      code |= bits(1);
      if (code - counts[length] < first) return symbols[index + code - first];
      index += counts[length];
      first = (first + counts[length]) << 1;
      code <<= 1;
    }
    throw new Error("broken data");
  };
  const room = (more) => {
    if (size + more <= out.length) return;
    const larger = new Uint8Array(Math.max(out.length * 2, size + more));
    larger.set(out);
    out = larger;
  };
  for (let last = 0; !last;) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      held = count = 0;
      const length = source[at] | (source[at + 1] << 8);
      at += 4;
      room(length);
      out.set(source.subarray(at, at + length), size);
      at += length; size += length;
      continue;
    }
    let literals, far;
    if (kind === 1) {
      literals = huffman(Uint8Array.from({ length: 288 }, (_, n) => (n < 144 ? 8 : n < 256 ? 9 : n < 280 ? 7 : 8)));
      far = huffman(new Uint8Array(30).fill(5));
    } else {
      const many = bits(5) + 257, distant = bits(5) + 1, codes = bits(4) + 4, lengths = new Uint8Array(19);
      for (let n = 0; n < codes; n++) lengths[CODE_ORDER[n]] = bits(3);
      const code = huffman(lengths), all = new Uint8Array(many + distant);
      for (let n = 0; n < all.length;) {
        const one = symbol(code);
        if (one < 16) { all[n++] = one; continue; }
        const value = one === 16 ? all[n - 1] : 0;
        let repeat = one === 16 ? 3 + bits(2) : one === 17 ? 3 + bits(3) : 11 + bits(7);
        while (repeat--) all[n++] = value;
      }
      literals = huffman(all.subarray(0, many));
      far = huffman(all.subarray(many));
    }
    for (;;) {
      const one = symbol(literals);
      if (one < 256) { room(1); out[size++] = one; continue; }
      if (one === 256) break;
      const length = LENGTH_BASE[one - 257] + bits(LENGTH_EXTRA[one - 257]);
      const code = symbol(far), back = FAR_BASE[code] + bits(FAR_EXTRA[code]);
      room(length);
      for (let n = 0; n < length; n++, size++) out[size] = out[size - back];
    }
  }
  return out.subarray(0, size);
}
