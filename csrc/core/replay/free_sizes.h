// The sizes of all free pieces; the largest is known at any time. An ordered map would cost more than the rest of the
// replay.
#pragma once

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
    for (auto& [known, count] : buckets_[bucket]) {
      if (known == size) {
        ++count;
        return;
      }
    }
    if (!more_.empty()) {
      if (const auto known = more_.find(size); known != more_.end()) {
        ++known->second;
        return;
      }
    }
    if (size > largest_) largest_ = size;
    if (buckets_[bucket].size() == kSearched) {
      more_.emplace(size, 1);
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
    const auto known = more_.find(size);
    if (known == more_.end() || --known->second != 0) return;
    more_.erase(known);
    if (size == largest_) largest_ = kUnknown;
  }

  // 0 when there is none.
  std::uint64_t largest() {
    if (largest_ == kUnknown) largest_ = find_largest();
    return largest_;
  }

 private:
  // 64 buckets to each power of two: few enough sizes fall into one that they are searched in a row. Those of a program
  // do; made-up ones may all fall into the same, and then most of them are kept in order.
  static constexpr int kFraction = 6;
  static constexpr std::size_t kSearched = 64;
  static constexpr std::size_t kBuckets = std::size_t{64} << kFraction;
  static constexpr std::uint64_t kUnknown = UINT64_MAX;
  using Bucket = std::vector<std::pair<std::uint64_t, std::uint32_t>>;  // size, how many

  static std::size_t bucket_of(std::uint64_t size) {
    const int log = std::bit_width(size | 1) - 1;
    const std::uint64_t fraction = log >= kFraction ? size >> (log - kFraction) : size << (kFraction - log);
    return static_cast<std::size_t>(log) << kFraction | (fraction & ((std::uint64_t{1} << kFraction) - 1));
  }

  std::uint64_t find_largest() const {
    std::uint64_t largest = more_.empty() ? 0 : more_.rbegin()->first;
    if (used_words_ == 0) return largest;
    const auto word = static_cast<std::size_t>(std::bit_width(used_words_) - 1);
    const std::size_t bucket = word * 64 + static_cast<std::size_t>(std::bit_width(used_[word]) - 1);
    for (const auto& [size, count] : buckets_[bucket]) largest = size > largest ? size : largest;
    return largest;
  }

  std::map<std::uint64_t, std::uint32_t> more_;  // for which their bucket had no room
  std::vector<Bucket> buckets_ = std::vector<Bucket>(kBuckets);
  std::array<std::uint64_t, kBuckets / 64> used_{};  // bit by bucket: it has sizes
  std::uint64_t used_words_ = 0;                     // bit by word of used_
  static_assert(kBuckets / 64 == 64);
  std::uint64_t largest_ = 0;
};

}  // namespace alloctrace
