// The sizes of all free pieces, with their maximum. An ordered map would cost more than the rest of the replay.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace alloctrace {

class FreeSizes {
 public:
  void add(std::uint64_t size) {
    const std::size_t bucket = bucket_of(size);
    for (auto& [other, count] : buckets_[bucket]) {
      if (other == size) {
        ++count;
        return;
      }
    }
    if (!overflow_.empty()) {
      if (const auto entry = overflow_.find(size); entry != overflow_.end()) {
        ++entry->second;
        return;
      }
    }
    if (size > largest_) largest_ = size;
    if (buckets_[bucket].size() == kMaxBucketSizes) {
      overflow_.emplace(size, 1);
      return;
    }
    buckets_[bucket].emplace_back(size, 1);
    used_[bucket / 64] |= std::uint64_t{1} << bucket % 64;
    used_words_ |= std::uint64_t{1} << bucket / 64;
  }

  void remove(std::uint64_t size) {
    const std::size_t bucket = bucket_of(size);
    Bucket& sizes = buckets_[bucket];
    for (auto& entry : sizes) {
      if (entry.first != size) continue;
      if (--entry.second != 0) return;
      entry = sizes.back();
      sizes.pop_back();
      if (sizes.empty()) {
        used_[bucket / 64] &= ~(std::uint64_t{1} << bucket % 64);
        if (used_[bucket / 64] == 0) used_words_ &= ~(std::uint64_t{1} << bucket / 64);
      }
      if (size == largest_) largest_ = kUnknown;
      return;
    }
    const auto entry = overflow_.find(size);
    if (entry == overflow_.end() || --entry->second != 0) return;
    overflow_.erase(entry);
    if (size == largest_) largest_ = kUnknown;
  }

  std::uint64_t largest() {  // 0: no free pieces
    if (largest_ == kUnknown) largest_ = find_largest();
    return largest_;
  }

  // Return whether these are the sizes, ascending, and the maximum is right. For checks.
  bool equals(const std::vector<std::uint64_t>& ascending) const {
    std::vector<std::uint64_t> sizes;
    for (const auto& [size, count] : overflow_) sizes.insert(sizes.end(), count, size);
    for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
      if ((used_words_ >> bucket / 64 & 1) == 0) bucket |= 63;  // skip the word's other buckets
      for (const auto& [size, count] : buckets_[bucket]) sizes.insert(sizes.end(), count, size);
    }
    std::sort(sizes.begin(), sizes.end());
    const std::uint64_t largest = sizes.empty() ? 0 : sizes.back();
    return sizes == ascending && find_largest() == largest && (largest_ == kUnknown || largest_ == largest);
  }

 private:
  // 64 buckets per power of two, so that few sizes of a program fall into one, which is searched linearly. In a hostile
  // trace all sizes may fall into one bucket, so sizes beyond kMaxBucketSizes are ordered in overflow_.
  static constexpr int kFractionBits = 6;
  static constexpr std::size_t kMaxBucketSizes = 64;
  static constexpr std::size_t kBuckets = std::size_t{64} << kFractionBits;
  static constexpr std::uint64_t kUnknown = UINT64_MAX;
  using Bucket = std::vector<std::pair<std::uint64_t, std::uint32_t>>;  // size, number of pieces

  static std::size_t bucket_of(std::uint64_t size) {
    const int log = std::bit_width(size | 1) - 1;
    const std::uint64_t fraction = log >= kFractionBits ? size >> (log - kFractionBits) : size << (kFractionBits - log);
    return static_cast<std::size_t>(log) << kFractionBits | (fraction & ((std::uint64_t{1} << kFractionBits) - 1));
  }

  std::uint64_t find_largest() const {
    std::uint64_t largest = overflow_.empty() ? 0 : overflow_.rbegin()->first;
    if (used_words_ == 0) return largest;
    const auto word = static_cast<std::size_t>(std::bit_width(used_words_) - 1);
    const std::size_t bucket = word * 64 + static_cast<std::size_t>(std::bit_width(used_[word]) - 1);
    for (const auto& [size, count] : buckets_[bucket]) largest = size > largest ? size : largest;
    return largest;
  }

  std::map<std::uint64_t, std::uint32_t> overflow_;  // sizes whose bucket was full
  std::vector<Bucket> buckets_ = std::vector<Bucket>(kBuckets);
  std::array<std::uint64_t, kBuckets / 64> used_{};  // a bit per bucket: not empty
  std::uint64_t used_words_ = 0;                     // a bit per word of used_
  static_assert(kBuckets / 64 == 64);
  std::uint64_t largest_ = 0;
};

}  // namespace alloctrace
