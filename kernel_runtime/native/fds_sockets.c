/* fds_sockets.c: sockets. Listening ones listen again, unconnected ones are bound again, pairs
 * within the process come back with their queues. What was connected to elsewhere comes back as a
 * socket that is not connected: using it fails cleanly. */
#include "fds.h"
#include "unix_diag.h"

#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/un.h>

#ifndef SO_PEEK_OFF
#define SO_PEEK_OFF 42
#endif
#define QUEUE_LIMIT ((size_t)4 << 20) /* bytes of one message, or of one stream's queue */
#define BACKLOG 128

static int get_int(int fd, int level, int name) {
  int v = 0;
  uint32_t size = sizeof v;
  return SC(SYS_getsockopt, fd, level, name, &v, &size) ? -1 : v;
}

/* --- describing ------------------------------------------------------------------------------ */

/* Peek at the whole queue. Messages stay apart; SO_PEEK_OFF steps from one to the next. */
static int copy_queue(struct tt_state *state, struct tt_socket *s, int fd) {
  int waiting = 0, from_start = 0, stream = s->type == SOCK_STREAM;
  if (SC(SYS_ioctl, fd, FIONREAD, &waiting)) waiting = 0;
  int peek_off = get_int(fd, SOL_SOCKET, SO_PEEK_OFF);
  if (stream && waiting == 0) return 0;
  if (SC(SYS_setsockopt, fd, SOL_SOCKET, SO_PEEK_OFF, &from_start, sizeof from_start)) return 0;
  int error = tt_buffer_reserve(&state->text, QUEUE_LIMIT);
  while (!error) {
    struct iovec data = {state->text.data, QUEUE_LIMIT};
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    long n = SC(SYS_recvmsg, fd, &message, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 || (n == 0 && stream)) break;
    if (message.msg_flags & MSG_CTRUNC)
      tt_report_fd(state, "fds_in_flight", fd, "descriptors or credentials in its queue are lost");
    if (n == 0) break; /* an empty message does not move the peek offset */
    char *to = tt_extent_add(state, &s->queue, 0, (uint64_t)n);
    if (!to) {
      tt_report_fd(state, "socket", fd, "its queue is too large to be kept");
      break;
    }
    memcpy(to, state->text.data, (size_t)n);
  }
  SC(SYS_setsockopt, fd, SOL_SOCKET, SO_PEEK_OFF, &peek_off, sizeof peek_off);
  return error;
}

static int has_address(const struct tt_socket *s) {
  sa_family_t family;
  memcpy(&family, s->address, sizeof family);
  if (s->domain == AF_UNIX) return s->address_size > sizeof family;
  if (s->domain == AF_NETLINK) return s->address_size == sizeof(struct sockaddr_nl);
  uint16_t port;
  memcpy(&port, s->address + sizeof family, 2); /* the same place for IPv4 and IPv6 */
  return (s->domain == AF_INET || s->domain == AF_INET6) && port;
}

static void note_backlog(struct tt_socket *s, int fd) {
  struct tcp_info info;
  uint32_t size = sizeof info;
  s->backlog = BACKLOG;
  memset(&info, 0, sizeof info);
  /* of a listening socket tcpi_sacked is the longest queue (net/ipv4/tcp.c, tcp_get_info) */
  if (s->domain != AF_UNIX && !SC(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &size)) {
    if (info.tcpi_sacked) s->backlog = (int)info.tcpi_sacked;
    s->waiting = info.tcpi_unacked; /* those that can be accepted */
  }
}

static void note_path(struct tt_socket *s) {
  struct stat st;
  const char *path = s->address + offsetof(struct sockaddr_un, sun_path);
  if (s->domain == AF_UNIX && s->address_size > sizeof(sa_family_t) && path[0] &&
      SC(SYS_newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
    s->file_mode = st.st_mode & 07777;
}

int tt_socket_describe(struct tt_state *state, struct tt_desc *desc) {
  struct tt_socket *s = tt_alloc(&state->arena, sizeof *s);
  int fd = desc->fd;
  if (!s) return -ENOMEM;
  desc->kind = TT_KIND_SOCKET;
  desc->u.socket = s;
  s->domain = get_int(fd, SOL_SOCKET, SO_DOMAIN);
  s->type = get_int(fd, SOL_SOCKET, SO_TYPE);
  s->protocol = get_int(fd, SOL_SOCKET, SO_PROTOCOL);
  s->listening = get_int(fd, SOL_SOCKET, SO_ACCEPTCONN) > 0;
  s->address_size = s->peer_size = sizeof s->address;
  if (SC(SYS_getsockname, fd, s->address, &s->address_size)) s->address_size = 0;
  if (!has_address(s)) s->address_size = 0;
  s->connected = /* of netlink(7) always: to the kernel */
      SC(SYS_getpeername, fd, s->peer, &s->peer_size) == 0 && s->domain != AF_NETLINK;
  if (s->listening) note_backlog(s, fd);
  note_path(s);
  return tt_options_describe(state, desc);
}

static struct tt_desc *find_socket(struct tt_state *state, uint32_t ino) {
  for (struct tt_desc *d = state->descs; d; d = d->next)
    if (d->kind == TT_KIND_SOCKET && (uint32_t)d->ino == ino) return d;
  return 0;
}

static void note_address(struct tt_note *note, const char *address, uint32_t size, int domain) {
  const unsigned char *a = (const unsigned char *)address;
  if (domain == AF_UNIX) {
    size_t skip = offsetof(struct sockaddr_un, sun_path);
    if (size <= skip)
      tt_note(note, "unnamed");
    else if (a[skip])
      tt_note(note, address + skip);
    else
      tt_note(note, "@"), tt_note_bytes(note, address + skip + 1, size - skip - 1);
    return;
  }
  size_t first = domain == AF_INET6 ? 8 : 4, count = domain == AF_INET6 ? 16 : 4;
  for (size_t i = 0; i < count; i++) {
    if (i && (domain == AF_INET || !(i & 1))) tt_note(note, domain == AF_INET ? "." : ":");
    if (domain == AF_INET)
      tt_note_number(note, a[first + i]);
    else {
      static const char hex[] = "0123456789abcdef";
      char two[2] = {hex[a[first + i] >> 4], hex[a[first + i] & 15]};
      tt_note_bytes(note, two, 2);
    }
  }
  tt_note(note, " port ");
  tt_note_number(note, (uint64_t)a[2] << 8 | a[3]);
}

static void report_connection(struct tt_state *state, struct tt_desc *desc) {
  struct tt_socket *s = desc->u.socket;
  struct tt_note note = {{0}, 0};
  if (s->domain != AF_UNIX && s->domain != AF_INET && s->domain != AF_INET6) {
    tt_note(&note, "a connection of address family ");
    tt_note_number(&note, (uint64_t)s->domain);
  } else {
    tt_note(&note, "connected to ");
    note_address(&note, s->peer, s->peer_size, s->domain);
  }
  tt_note(&note, ": is not connected when woken");
  tt_report_fd(state, "connection", desc->fd, note.text);
}

static int is_unnamed_end(const struct tt_desc *d) {
  if (d->kind != TT_KIND_SOCKET || d->u.socket->domain != AF_UNIX) return 0;
  const struct tt_socket *s = d->u.socket;
  return s->connected && !s->other && !s->address_size && s->peer_size <= sizeof(sa_family_t);
}

/* Without the kernel's word for it: socketpair(2) makes two sockets without a name in a row, so
 * the one of lowest number belongs to the next. */
static void guess_pairs(struct tt_state *state) {
  uint64_t above = 0;
  for (;;) {
    struct tt_desc *first = 0, *second = 0;
    for (struct tt_desc *d = state->descs; d; d = d->next)
      if (is_unnamed_end(d) && d->ino > above && (!first || d->ino < first->ino)) first = d;
    if (!first) return;
    for (struct tt_desc *d = state->descs; d; d = d->next)
      if (is_unnamed_end(d) && d->ino == first->ino + 1) second = d;
    above = first->ino;
    if (!second || second->u.socket->type != first->u.socket->type) continue;
    first->u.socket->other = second;
    second->u.socket->other = first;
    tt_report_fd(state, "socket", first->fd, "taken for one end of a pair: sock_diag is refused");
  }
}

/* 0, or -errno when the kernel cannot be asked. */
static int ask_kernel(struct tt_state *state, struct tt_desc *desc, int *netlink) {
  struct tt_socket *s = desc->u.socket;
  struct tt_unix_facts facts;
  int error = tt_unix_ask(netlink, (uint32_t)desc->ino, &facts);
  if (error) return error;
  s->shut = facts.shutdown;
  if (s->listening) {
    s->backlog = (int)facts.backlog;
    s->waiting = facts.waiting;
  }
  if (s->connected) s->other = find_socket(state, facts.peer_ino);
  if (s->other == desc) s->other = 0;
  return 0;
}

/* A datagram socket may be connected to one that is not connected to it: that is no pair, and is
 * brought back by its addresses. */
static void keep_mutual(struct tt_state *state) {
  for (struct tt_desc *d = state->descs; d; d = d->next) {
    if (d->kind != TT_KIND_SOCKET || !d->u.socket->other) continue;
    struct tt_socket *other = d->u.socket->other->u.socket;
    if (!other->connected || other->other != d) d->u.socket->other = 0;
  }
}

static void report_waiting(struct tt_state *state, const struct tt_desc *desc) {
  struct tt_note note = {{0}, 0};
  tt_note(&note, "connections that wait to be accepted are lost: ");
  tt_note_number(&note, desc->u.socket->waiting);
  tt_report_fd(state, "connection", desc->fd, note.text);
}

/* Who is connected to whom, once all sockets are known; then the queues. */
int tt_sockets_finish(struct tt_state *state) {
  int netlink = -1, refused = 0, error = 0;
  for (struct tt_desc *d = state->descs; d && !refused; d = d->next)
    if (d->kind == TT_KIND_SOCKET && d->u.socket->domain == AF_UNIX &&
        (d->u.socket->connected || d->u.socket->listening))
      refused = ask_kernel(state, d, &netlink);
  tt_close(netlink);
  if (refused) guess_pairs(state);
  keep_mutual(state);
  for (struct tt_desc *d = state->descs; d && !error; d = d->next) {
    if (d->kind != TT_KIND_SOCKET) continue;
    struct tt_socket *s = d->u.socket;
    if (s->listening && s->waiting) report_waiting(state, d);
    if (tt_has_letters(s))
      error = tt_letters_describe(state, d);
    else if (s->domain == AF_UNIX && !s->listening)
      error = copy_queue(state, s, d->fd);
    if (s->connected && !s->other && !tt_is_aimed(s)) report_connection(state, d);
  }
  return error;
}

/* --- waking ------------------------------------------------------------------------------- */

/* Send into other what waited at s. The buffer is made large enough first; tt_options_set follows. */
static void put_queue(struct tt_state *state, const struct tt_desc *desc, int other) {
  const struct tt_socket *s = desc->u.socket;
  int room = 2 * (int)QUEUE_LIMIT;
  if (!s->queue.first) return;
  if (SC(SYS_setsockopt, other, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room))
    SC(SYS_setsockopt, other, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  for (const struct tt_extent *e = s->queue.first; e; e = e->next)
    if (SC(SYS_sendto, other, e->data, e->size, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0) !=
        (long)e->size) {
      tt_report_fd(state, "socket", desc->fd, "not all of its queue could be put back");
      return;
    }
}

static void shut(const struct tt_socket *s, int fd) {
  if (s->shut) SC(SYS_shutdown, fd, s->shut == 3 ? SHUT_RDWR : s->shut == 1 ? SHUT_RD : SHUT_WR);
}

/* Both ends of a connected pair of Unix sockets. other is NULL, or the desc of the second end; a
 * pair whose second end was elsewhere ends after what is in the queue. */
static int open_pair(struct tt_state *state, struct tt_desc *desc, struct tt_desc *other) {
  struct tt_socket *s = desc->u.socket;
  int ends[2];
  long r = SC(SYS_socketpair, AF_UNIX, s->type | SOCK_CLOEXEC, s->protocol, ends);
  if (r) return (int)r;
  put_queue(state, desc, ends[1]);
  if (!other) {
    tt_options_set(state, desc, ends[0]);
    tt_close(ends[1]);
    return ends[0];
  }
  put_queue(state, other, ends[0]);
  tt_options_set(state, desc, ends[0]);
  tt_options_set(state, other, ends[1]);
  shut(s, ends[0]);
  shut(other->u.socket, ends[1]);
  SC(SYS_fcntl, ends[1], F_SETFL, other->flags);
  int second = tt_fds_park(state, ends[1]);
  int error = second < 0 ? second : tt_fds_install(state, other, second);
  return error ? error : ends[0];
}

/* A socket file that nobody listens on any more is in the way of bind. */
static int is_stale(const struct tt_socket *s) {
  struct stat st;
  const char *path = s->address + offsetof(struct sockaddr_un, sun_path);
  if (s->domain != AF_UNIX || !path[0]) return 0;
  if (SC(SYS_newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) || !S_ISSOCK(st.st_mode))
    return 0;
  int fd = (int)SC(SYS_socket, AF_UNIX, s->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  long r = SC(SYS_connect, fd, s->address, s->address_size);
  tt_close(fd);
  return r == -ECONNREFUSED;
}

static long bind_again(const struct tt_socket *s, int fd) {
  int yes = 1;
  const char *path = s->address + offsetof(struct sockaddr_un, sun_path);
  if (s->domain != AF_UNIX) SC(SYS_setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  long r = SC(SYS_bind, fd, s->address, s->address_size);
  if (r == -EADDRINUSE && is_stale(s)) {
    SC(SYS_unlinkat, AT_FDCWD, path, 0);
    r = SC(SYS_bind, fd, s->address, s->address_size);
  }
  if (r == 0 && s->domain == AF_UNIX && path[0] && s->file_mode)
    SC(SYS_fchmodat, AT_FDCWD, path, s->file_mode, 0);
  return r;
}

static void report_unbound(struct tt_state *state, struct tt_desc *desc, long error) {
  struct tt_note note = {{0}, 0};
  note_address(&note, desc->u.socket->address, desc->u.socket->address_size,
               desc->u.socket->domain);
  tt_note(&note, ": not bound again, ");
  tt_note_error(&note, (int)error);
  tt_report_fd(state, "socket", desc->fd, note.text);
}

int tt_socket_open(struct tt_state *state, struct tt_desc *desc) {
  struct tt_socket *s = desc->u.socket;
  int fd, datagram = s->type == SOCK_DGRAM;
  /* a peer without a name: the other end of a pair, which may be closed */
  if (s->domain == AF_UNIX && s->connected &&
      (s->other || !datagram || s->peer_size <= sizeof(sa_family_t))) {
    struct tt_desc *other = s->other && !s->other->done ? s->other : 0;
    fd = open_pair(state, desc, other);
  } else {
    fd = (int)SC(SYS_socket, s->domain, s->type | SOCK_CLOEXEC, s->protocol);
    if (fd < 0) return fd;
    long r = 0;
    for (struct tt_option *o = s->options; o; o = o->next) /* the rest after bind */
      if ((o->level == IPPROTO_IPV6 && o->name == IPV6_V6ONLY) ||
          (o->level == SOL_SOCKET && o->name == SO_REUSEPORT))
        SC(SYS_setsockopt, fd, o->level, o->name, o->value, o->size);
    if (s->address_size && (!s->connected || datagram)) r = bind_again(s, fd);
    if (!r && s->listening) r = SC(SYS_listen, fd, s->backlog);
    if (r) report_unbound(state, desc, r);
    tt_options_set(state, desc, fd);
  }
  if (fd >= 0) SC(SYS_fcntl, fd, F_SETFL, desc->flags);
  return fd;
}
