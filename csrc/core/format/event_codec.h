// Encoder and decoder of events: about five bytes an event in a training run, instead of 64 in memory.
//
// A block's payload consists of columns, each `varint byte count` + bytes:
//
//   tag | kind | time | address | size | stack | context
//
// The tag column has one byte an event; another column has an entry only if the tag announces it:
//
//   bit  7        6        5     4        3..0
//       context  address  size  stack    kind (15: in the kind column)
//
// A set bit means "an entry follows in that column", a clear one "as predicted". Training programs repeat themselves,
// so each prediction is the successor of last time: a table of 4096 entries, indexed by a hash of what came before
// (hash_slot), which writer and reader fill alike. The tables are empty at the start of each block.
//
//   time      always an entry: zigzag difference to the time of the event before (of the first: to BlockHeader.begin).
//   address   key (index of the last address, kind) -> index of the next. Addresses are numbered as they first appear.
//             Entry: 0 for a new one, then its zigzag difference to the last new one; else 1 + zigzag(index - last).
//   size      key (stack, last size of an alloc, kind) -> size. Entry: the size.
//   stack     key (last stack, kind) -> stack. Entry: zigzag difference to the last stack.
//   context   thread, location, autograd fields; predicted: as in the thread's last event, the thread as in the event
//             before. Entry: a byte of bits (1 thread, 2 location, 4 sequence, 8 node), then per set bit: thread id;
//             location id; zigzag difference of sequence; zigzag difference of node_sequence, node_thread, node_type.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "../base/address_map.h"
#include "../base/varint.h"
#include "event.h"

namespace alloctrace {

struct CodecState;

// Encoder of one block at a time. Reuses its buffers; not thread-safe.
class EventEncoder {
 public:
  EventEncoder();
  // Return the payload of one block, valid until the next call: `first` then `second`, the halves of a wrapped ring.
  const Bytes& encode(std::span<const Event> first, std::span<const Event> second, std::uint64_t begin_time);

 private:
  void encode_run(std::span<const Event> events, CodecState& state);
  Bytes columns_[7];
  Bytes payload_;
  AddressMap<std::uint32_t> address_indices_;
};

// Decode `count` events of one block into `out` (resized). Throws DecodeError on invalid bytes.
void decode_events(const std::uint8_t* payload, std::size_t size, std::uint64_t count, std::uint64_t begin_time,
                   std::vector<Event>& out);

}  // namespace alloctrace
