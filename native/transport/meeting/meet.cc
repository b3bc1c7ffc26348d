#include "transport/meeting/meet.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "transport/meeting/rendezvous.h"
#include "transport/sockets/rank_name.h"

namespace hvdtune {
namespace {

RendezvousOptions rendezvous_of(const MeetingOptions& options, const NetworkOptions& network) {
  RendezvousOptions rendezvous;
  rendezvous.rank = options.rank;
  rendezvous.size = options.size;
  rendezvous.host = network.host;
  rendezvous.port = network.port;
  rendezvous.secret = network.secret;
  rendezvous.hostname = options.hostname;
  rendezvous.version = network.version;
  rendezvous.agreement = options.agreement;
  rendezvous.interfaces = network.interfaces;
  rendezvous.timeout = options.timeout;
  rendezvous.vanish = network.vanish;
  rendezvous.on_wait = options.on_wait;
  return rendezvous;
}

[[noreturn]] void fail(Mesh& mesh, ErrorKind kind, const std::string& text) {
  mesh.abort(text);
  throw Error(kind, text);
}

/// Sends this rank's text to all and returns all texts, by rank. Returns on a rank only after all
/// ranks have begun.
std::vector<std::string> tell_all(Mesh& mesh, const std::string& text,
                                  const MeetingOptions& options) {
  const Nanos deadline = monotonic_now() + options.timeout;
  std::vector<std::string> texts(static_cast<std::size_t>(mesh.size()));
  const auto lost = [&](int rank) {
    fail(mesh, ErrorKind::kAborted,
         mesh.name(rank) + " ended before all processes of the job had come");
  };
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank == mesh.rank()) continue;
    if (tcp::send_message(mesh.peer(rank).data, text, deadline) != tcp::Outcome::kDone) lost(rank);
  }
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::string& its = texts[static_cast<std::size_t>(rank)];
    if (rank == mesh.rank()) {
      its = text;
      continue;
    }
    const Fd& socket = mesh.peer(rank).data;
    while (!tcp::wait_for(socket.get(), POLLIN, monotonic_now() + tcp::kWaitSlice)) {
      options.on_wait();
      mesh.look();
      if (monotonic_now() >= deadline) {
        fail(mesh, ErrorKind::kTimeout, mesh.name(rank) + " did not answer in time");
      }
    }
    if (tcp::receive_message(socket, its, deadline) != tcp::Outcome::kDone) lost(rank);
  }
  return texts;
}

/// The ranks of each host; hosts are ordered by their first rank.
std::vector<std::vector<int>> hosts_of(const std::vector<std::string>& ids) {
  std::vector<std::vector<int>> hosts;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const auto known = std::find_if(hosts.begin(), hosts.end(), [&](const std::vector<int>& host) {
      return ids[static_cast<std::size_t>(host.front())] == ids[rank];
    });
    if (known == hosts.end()) {
      hosts.push_back({static_cast<int>(rank)});
    } else {
      known->push_back(static_cast<int>(rank));
    }
  }
  return hosts;
}

/// `all`: connects all ranks.
std::shared_ptr<Mesh> connect_leaders(RendezvousOptions rendezvous, int host,
                                      const std::vector<std::vector<int>>& hosts, Mesh& all) {
  rendezvous.rank = host;
  rendezvous.size = static_cast<int>(hosts.size());
  rendezvous.agreement = "the hosts' first ranks";
  for (const std::vector<int>& ranks : hosts) rendezvous.names.push_back(ranks.front());
  try {
    return form_mesh(rendezvous);
  } catch (const Error& error) {
    // What a leader says, or that it is gone, may be the consequence of another rank's failure.
    if (error.kind() == ErrorKind::kAborted) {
      rendezvous.on_wait();  // throws if this rank has been told to stop, or the reason is known
      all.hear_reason(0);
    }
    throw;
  }
}

}  // namespace

HostSession meet(const MeetingOptions& options, const std::optional<NetworkOptions>& network) {
  if (!network || options.size == 1) return meet_on_host(options);
  RendezvousOptions rendezvous = rendezvous_of(options, *network);
  // Two meetings use this port, one after the other: no other process may take it in between.
  if (options.rank == 0) rendezvous.listener = listen_for_ranks(rendezvous);
  std::shared_ptr<Mesh> mesh = form_mesh(rendezvous);
  // From here on a rank that fails tells all others why.
  const auto reason = [&](const std::exception& error) {
    if (mesh->aborted()) return std::string(error.what());
    return name_of(options.rank, getpid(), options.hostname) + " has failed: " + error.what();
  };
  try {
    const auto hosts = hosts_of(tell_all(*mesh, network->host_id, options));
    std::vector<int> host_of(static_cast<std::size_t>(options.size));
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      for (const int rank : hosts[host]) {
        host_of[static_cast<std::size_t>(rank)] = static_cast<int>(host);
      }
    }
    const int host = host_of[static_cast<std::size_t>(options.rank)];
    const std::vector<int>& local = hosts[static_cast<std::size_t>(host)];
    MeetingOptions here = options;
    here.on_wait = [&options, &mesh] {
      options.on_wait();
      mesh->look();
    };
    here.hear_reason = [&mesh, &local] { mesh->hear_reason(local.front()); };
    rendezvous.on_wait = here.on_wait;
    if (hosts.size() > 1) {
      here.local = local;
      // Otherwise, hosts that share one machine would meet at the same name.
      here.endpoint += "/host" + std::to_string(host);
    }
    HostSession session = meet_on_host(here);
    if (hosts.size() == 1) return session;
    if (options.rank == session.leader) {
      try {
        session.leaders = connect_leaders(std::move(rendezvous), host, hosts, *mesh);
      } catch (const std::exception& error) {
        session.arena->abort(reason(error));  // otherwise this host's ranks would report a death
        throw;
      }
    }
    for (int rank = 0; rank < options.size; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (host_of[at] == host) continue;
      session.peers[at] = {mesh->peer(rank).hostname, mesh->peer(rank).pid, false};
    }
    session.host_of = std::move(host_of);
    session.mesh = std::move(mesh);
    return session;
  } catch (const std::exception& error) {
    mesh->abort(reason(error));  // so that the others do not wait
    throw;
  }
}

}  // namespace hvdtune
