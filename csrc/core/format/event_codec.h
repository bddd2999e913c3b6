// Events as bytes: about five a piece in a training run, where the event in memory has 64.
//
// A block's payload is a row of columns, each `varint byte count` + bytes:
//
//   tag | kind | time | address | size | stack | context
//
// The tag column has one byte an event; the others have an entry only where the tag says so:
//
//   bit  7        6        5     4        3..0
//       context  address  size  stack    kind (15: the kind column has it)
//
// A set bit means "an entry follows in that column", a clear one "as predicted". Programs that train repeat themselves,
// so the prediction is that what followed last time follows again: each prediction is a table of 4096 entries, indexed
// by a hash of what came before (hash_slot below), that writer and reader fill alike while they go. State starts empty
// in each block.
//
//   time      always an entry: zigzag difference to the time of the event before (of the first: to BlockHeader.begin).
//   address   key (index of the last address, kind) -> index of the next. An entry is 0 for an address that is new in
//   the
//             block, followed by its zigzag difference to the last new one, else 1 + zigzag(index - last index).
//             Addresses are numbered in the order of their first appearance.
//   size      key (stack, last size of an alloc, kind) -> size. Entry: the size.
//   stack     key (last stack, kind) -> stack. Entry: zigzag difference to the last stack.
//   context   thread, location, autograd fields. Entry: a byte of bits (1 thread, 2 location, 4 sequence, 8 node), then
//   for
//             each set bit: thread id; location id; zigzag difference of sequence; zigzag difference of
//             node_sequence, node_thread, node_type. Predicted: the same as in the last event of the same thread (and
//             the thread: that of the event before).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "../base/address_map.h"
#include "../base/varint.h"
#include "event.h"

namespace alloctrace {

struct CodecState;

// Encodes runs of events. Keeps its buffers between blocks; not thread-safe.
class EventEncoder {
 public:
  EventEncoder();
  // Payload of one block: `first` then `second` (the two halves of a wrapped ring). Valid until the next call.
  const Bytes& encode(std::span<const Event> first, std::span<const Event> second, std::uint64_t begin_time);

 private:
  void encode_run(std::span<const Event> events, CodecState& state);
  Bytes columns_[7];
  Bytes payload_;
  AddressMap<std::uint32_t> address_indices_;
};

// Decodes `count` events of one block into `out` (resized). Throws DecodeError where the bytes make no sense.
void decode_events(const std::uint8_t* payload, std::size_t size, std::uint64_t count, std::uint64_t begin_time,
                   std::vector<Event>& out);

}  // namespace alloctrace
