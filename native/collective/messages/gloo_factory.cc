#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collective/communicator_factory.h"
#include "collective/messages/message_communicator.h"
#include "transport/messengers/gloo.h"
#include "transport/sockets/tcp_address.h"

namespace hvdtune {
namespace {

/// All members' texts, in member order.
std::vector<std::string> gather_texts(Communicator& control, const std::string& mine) {
  const auto members = static_cast<std::size_t>(control.size());
  SegmentList in;
  in.add(const_cast<char*>(mine.data()), mine.size());  // SegmentList serves both directions
  std::vector<std::string> texts(members);
  std::vector<SegmentList> out(members);
  const std::vector<std::int64_t> length{static_cast<std::int64_t>(mine.size())};
  const Lengths lengths{length, [&](const std::vector<std::int64_t>& all) -> std::size_t {
                          for (std::size_t member = 0; member < members; ++member) {
                            texts[member].resize(static_cast<std::size_t>(all[member]));
                            out[member].add(texts[member].data(), texts[member].size());
                          }
                          return 0;
                        }};
  control.allgather({in, out, &lengths});
  return texts;
}

/// The exchange of texts between the members while Gloo connects them. A member may fail before or
/// after the others have received the texts that they wait for, so every member joins further
/// exchanges until none needs another.
class Meeting {
 public:
  explicit Meeting(Communicator& control) : control_(control) {}

  /// Returns all members' texts.
  std::vector<std::string> gather(const std::string& mine) {
    std::vector<std::string> all = gather_texts(control_, kAsks + mine);
    for (std::string& text : all) {
      if (text.front() == kFailed) {
        throw Error(ErrorKind::kAborted, "another rank cannot be connected");
      }
      text.erase(0, 1);
    }
    return all;
  }

  /// Returns after every member is connected, or knows that it will not be.
  void end(bool connected) {
    bool somebody_asks = true;
    while (somebody_asks) {
      somebody_asks = false;
      for (const std::string& text : gather_texts(control_, {connected ? kDone : kFailed})) {
        somebody_asks = somebody_asks || text.front() == kAsks;
      }
    }
  }

 private:
  static constexpr char kAsks = 'a';
  static constexpr char kDone = 'd';
  static constexpr char kFailed = 'f';
  Communicator& control_;
};

/// The address at which members on other hosts reach this one, taken from a connection to such a
/// member. Empty if there are none.
std::string address_for_others(const CommunicatorSpec& spec) {
  if (!spec.session.spans_hosts(spec.members)) return "";
  const auto other =
      std::ranges::find_if(spec.members, [&](int rank) { return !spec.session.is_here(rank); });
  return TcpAddress::local(spec.session.mesh->peer(*other).data.get()).host();
}

std::unique_ptr<Messenger> connect(const GlooChoice& choice, const CommunicatorSpec& spec,
                                   Communicator& control) {
  Meeting meeting(control);
  std::unique_ptr<Messenger> messenger;
  agree(control, spec, [&] {
    try {
      messenger = connect_gloo(choice.module,
                               {spec.index, static_cast<int>(spec.members.size()), choice.interface,
                                address_for_others(spec), choice.timeout,
                                [&](const std::string& mine) { return meeting.gather(mine); }});
    } catch (const Error&) {
      meeting.end(false);
      throw;
    }
    meeting.end(true);
  });
  return messenger;
}

}  // namespace

CommunicatorFactory make_gloo_factory(GlooChoice choice, CommunicatorFactory control) {
  return [choice = std::move(choice), control = std::move(control)](const CommunicatorSpec& spec) {
    const auto meeting = control(spec);
    if (spec.number == 0) agree(*meeting, spec, [&] { load_gloo(choice.module); });
    auto messenger = connect(choice, spec, *meeting);
    meeting->barrier();  // other communicators use its buffers after this
    return std::make_unique<MessageCommunicator>(std::move(messenger), message_group(spec),
                                                 kGlooActivities);
  };
}

}  // namespace hvdtune
