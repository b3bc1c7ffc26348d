#include "observe/capture/capture_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace hvdtune::capture {

void append_event(std::string& out, std::string_view name, int rank) {
  out += ",\n{\"name\":\"";
  out += name;
  out += "\",\"ph\":\"M\",\"pid\":";
  out += std::to_string(rank);
  out += ",\"args\":{";
}

std::string CaptureFile::open(const std::string& path, int rank, std::string_view identity,
                              std::size_t limit, int claimed) {
  path_ = path;
  rank_ = rank;
  identity_ = identity;
  limit_ = limit;
  pieces_.clear();
  blocks_dropped_ = 0;
  error_ = file_->open(path, identity, rank, claimed);
  char* real = realpath(path.c_str(), nullptr);
  real_path_ = real == nullptr ? path : real;
  free(real);  // NOLINT: realpath() has allocated it
  return error_;
}

bool CaptureFile::append(std::string_view lasting, std::string_view blocks) {
  if (lasting.empty() && blocks.empty()) return true;
  if (limit_ > 0 && file_->bytes() + lasting.size() + blocks.size() > limit_ && !drop_oldest()) {
    return false;
  }
  const std::size_t at = file_->bytes() - 1;  // position of the bracket
  if (!file_->append(lasting, blocks)) return fail(file_->error());
  note(lasting, at, true);
  note(blocks, at + lasting.size(), false);
  return true;
}

void CaptureFile::note(std::string_view text, std::size_t begin, bool lasting) {
  if (limit_ > 0 && !text.empty()) pieces_.push_back({begin, text.size(), lasting});
}

/// The lasting events, and the newest blocks: together half of the limit, so that dropping is rare.
std::vector<CaptureFile::Piece> CaptureFile::kept_pieces() const {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.lasting ? piece.bytes : 0;
  std::vector<Piece> kept;
  bool full = false;
  for (auto piece = pieces_.rbegin(); piece != pieces_.rend(); ++piece) {
    if (!piece->lasting) {
      full = full || bytes + piece->bytes > limit_ / 2;
      if (full) continue;
      bytes += piece->bytes;
    }
    kept.push_back(*piece);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

/// Writes a new file beside the old one and then replaces it, so that there is a complete file at
/// every moment.
bool CaptureFile::drop_oldest() {
  const std::vector<Piece> kept = kept_pieces();
  if (kept.size() == pieces_.size()) {
    return fail("cannot keep the timeline " + path_ + " below " + std::to_string(limit_ >> 20) +
                " MB (HVDTUNE_TIMELINE_MAX_MB): the names alone take more than half of it");
  }
  blocks_dropped_ += pieces_.size() - kept.size();
  const std::string beside = real_path_ + ".new";
  auto next = std::make_unique<TraceFile>();
  if (std::string error = next->open(beside, identity_, rank_); !error.empty()) return fail(error);
  std::ifstream old(real_path_, std::ios::binary);
  std::vector<Piece> moved;
  std::string text;
  for (const Piece& piece : kept) {
    text.resize(piece.bytes);
    old.seekg(static_cast<std::streamoff>(piece.begin));
    old.read(text.data(), static_cast<std::streamsize>(text.size()));
    moved.push_back({next->bytes() - 1, piece.bytes, piece.lasting});
    if (!old || !next->append(text)) break;
  }
  std::string note;
  append_event(note, "hvdtune_rotated", rank_);
  note += "\"blocks\":" + std::to_string(blocks_dropped_) + "}}";
  const bool whole = moved.size() == kept.size() && old && next->error().empty() &&
                     next->append(note) && rename(beside.c_str(), real_path_.c_str()) == 0;
  if (!whole) {
    const std::string why = next->error().empty() ? std::strerror(errno) : next->error();
    remove(beside.c_str());
    return fail("cannot drop the oldest part of the timeline " + path_ + ": " + why);
  }
  next->moved_to(path_);
  file_ = std::move(next);
  pieces_ = std::move(moved);
  return true;
}

bool CaptureFile::fail(const std::string& error) {
  error_ = error;
  file_->cut_off(error);
  return false;
}

}  // namespace hvdtune::capture
