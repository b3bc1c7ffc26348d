#include "collective/gpu/peer_buffers.h"

#include <cstring>
#include <functional>
#include <string>

#include "base/error.h"
#include "collective/exchange_texts.h"
#include "transport/meeting/host_id.h"

namespace hvdtune {
namespace {

/// A member's description of its buffer for the others.
struct BufferOffer {
  std::int64_t host;  ///< a hash of it
  CudaMemoryHandle buffer;
};

constexpr std::size_t kBufferOfferWords = sizeof(BufferOffer) / sizeof(std::int64_t);
static_assert(sizeof(BufferOffer) % sizeof(std::int64_t) == 0);

}  // namespace

PeerBuffers::PeerBuffers(Communicator& control, const std::shared_ptr<const Device>& device,
                         std::size_t bytes) {
  std::string problem;
  BufferOffer offer{};
  offer.host = static_cast<std::int64_t>(std::hash<std::string>{}(host_id("")));
  try {
    own_ = DeviceMemory(device, bytes);
    offer.buffer = export_memory(*device, own_);
  } catch (const Error& error) {
    problem = error.what();
  }
  all_or_none(control, problem);

  std::vector<std::int64_t> words(kBufferOfferWords);
  std::memcpy(words.data(), &offer, sizeof offer);
  const std::vector<std::int64_t> all = control.exchange(words);
  std::vector<BufferOffer> offers(static_cast<std::size_t>(control.size()));
  std::memcpy(offers.data(), all.data(), all.size() * sizeof(all[0]));
  try {
    for (std::size_t member = 0; member < offers.size(); ++member) {
      if (offers[member].host != offers[0].host) {
        throw Error(ErrorKind::kInvalidArgument,
                    "CUDA IPC is for ranks of one host, and members 0 and " +
                        std::to_string(member) + " are on different hosts");
      }
      if (static_cast<int>(member) == control.index()) {
        at_.push_back(own_.pointer());
        continue;
      }
      others_.push_back(std::make_unique<PeerMemory>(device, offers[member].buffer));
      at_.push_back(others_.back()->pointer());
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  all_or_none(control, problem);
}

}  // namespace hvdtune
