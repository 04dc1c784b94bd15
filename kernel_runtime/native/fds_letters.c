/* fds_letters.c: datagrams that wait at a socket with a name, each with its sender. They are sent
 * again by that sender, where it is a socket of the process too; the others are named as lost. */
#include "fds.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/un.h>

#ifndef SO_PEEK_OFF
#define SO_PEEK_OFF 42
#endif
#define LETTER_MOST ((size_t)1 << 20)
#define LETTERS_MOST 65536

int tt_is_aimed(const struct tt_socket *s) {
  return s->type == SOCK_DGRAM && s->connected && !s->other && s->peer_size > sizeof(sa_family_t);
}

int tt_has_letters(const struct tt_socket *s) {
  if (s->type != SOCK_DGRAM || s->other) return 0;
  return s->domain == AF_INET || s->domain == AF_INET6 || (s->domain == AF_UNIX && s->address_size);
}

/* --- describing ------------------------------------------------------------------------------ */

static uint16_t family_of(const char *address) {
  uint16_t family;
  memcpy(&family, address, sizeof family);
  return family;
}

static int all_zero(const char *at, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (at[i]) return 0;
  return 1;
}

/* Whether an address that a receiver was told may be that of a socket of ours. IPv4 in a receiver of
 * IPv6 is written as ::ffff:a.b.c.d. */
static int is_from(const struct tt_socket *s, const char *from, size_t size) {
  static const char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1};
  if (s->type != SOCK_DGRAM || !s->address_size) return 0;
  if (family_of(from) == AF_UNIX)
    return s->domain == AF_UNIX && s->address_size == size && !memcmp(s->address, from, size);
  if ((s->domain != AF_INET && s->domain != AF_INET6) || memcmp(s->address + 2, from + 2, 2))
    return 0; /* another port */
  const char *own = s->address + (s->domain == AF_INET ? 4 : 8);
  const char *told = from + (family_of(from) == AF_INET ? 4 : 8);
  size_t length = s->domain == AF_INET ? 4 : 16;
  if (family_of(from) == AF_INET6 && s->domain == AF_INET) {
    if (memcmp(told, mapped, sizeof mapped)) return 0;
    told += sizeof mapped;
  } else if (family_of(from) != s->domain) {
    return 0;
  }
  return all_zero(own, length) || !memcmp(own, told, length);
}

static int is_queued(int fd) {
  struct pollfd poll = {fd, POLLIN, 0};
  struct timespec none = {0, 0};
  if (SC(SYS_ppoll, &poll, 1, &none, 0, 0) <= 0) return 0;
  /* an error that is pending would be taken by a look at the queue */
  return poll.revents & POLLERR ? -1 : (poll.revents & POLLIN) != 0;
}

static struct tt_letter *add(struct tt_state *state, const char *data, long size) {
  if ((uint64_t)size > state->aside_left) return 0;
  struct tt_letter *letter = tt_alloc(&state->arena, sizeof *letter + (size_t)size);
  if (!letter) return 0;
  state->aside_left -= (uint64_t)size;
  state->aside_bytes += (uint64_t)size;
  letter->size = (size_t)size;
  memcpy(letter->data, data, (size_t)size);
  return letter;
}

int tt_letters_describe(struct tt_state *state, struct tt_desc *desc) {
  struct tt_socket *s = desc->u.socket;
  struct tt_letter **end = &s->letters;
  int queued = is_queued(desc->fd), zero = 0, before = 0, lost = queued < 0;
  uint32_t size = sizeof before;
  if (queued <= 0) goto done;
  int error = tt_buffer_reserve(&state->text, LETTER_MOST);
  if (error) return error;
  if (SC(SYS_getsockopt, desc->fd, SOL_SOCKET, SO_PEEK_OFF, &before, &size)) before = -1;
  lost = SC(SYS_setsockopt, desc->fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof zero) != 0;
  for (int count = 0; !lost; count++) {
    char from[128] = {0};
    struct iovec data = {state->text.data, LETTER_MOST};
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_name = from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    long n = SC(SYS_recvmsg, desc->fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) break;
    if (message.msg_flags & MSG_CTRUNC)
      tt_report_fd(state, "fds_in_flight", desc->fd,
                   "descriptors or credentials in its queue are lost");
    struct tt_desc *sender = state->descs;
    while (sender && !(sender->kind == TT_KIND_SOCKET && message.msg_namelen > sizeof(uint16_t) &&
                       is_from(sender->u.socket, from, message.msg_namelen)))
      sender = sender->next;
    int nameless = s->domain == AF_UNIX && message.msg_namelen <= sizeof(uint16_t);
    struct tt_letter *letter = sender || nameless ? add(state, state->text.data, n) : 0;
    lost |= !letter || message.msg_flags & MSG_TRUNC || count == LETTERS_MOST;
    if (!letter || count == LETTERS_MOST) continue;
    letter->sender = sender;
    memcpy(letter->from, from, sizeof from);
    *end = letter;
    end = &letter->next;
  }
  SC(SYS_setsockopt, desc->fd, SOL_SOCKET, SO_PEEK_OFF, &before, sizeof before);
done:
  if (lost)
    tt_report_fd(state, "socket", desc->fd,
                 "datagrams that were not read yet are lost, but those of the process's own");
  return 0;
}

/* --- waking ------------------------------------------------------------------------------- */

/* Where to send to: the name of the receiver; one that is bound to any address has that of the
 * sender, which is this machine's. */
static uint32_t address_to(const struct tt_socket *s, const struct tt_letter *letter, char *to) {
  int domain = letter->sender ? letter->sender->u.socket->domain : s->domain;
  size_t at = s->domain == AF_INET ? 4 : 8, length = s->domain == AF_INET ? 4 : 16;
  memcpy(to, s->address, sizeof s->address);
  if (s->domain == AF_UNIX) return s->address_size;
  if (all_zero(to + at, length)) {
    uint16_t port;
    memcpy(&port, s->address + 2, 2);
    memcpy(to, letter->from, sizeof letter->from);
    memcpy(to + 2, &port, 2);
  }
  if (family_of(to) == AF_INET6 && domain == AF_INET) { /* ::ffff:a.b.c.d */
    uint16_t family = AF_INET;
    memmove(to + 4, to + 20, 4);
    memcpy(to, &family, sizeof family);
  }
  return domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static long send_again(const struct tt_socket *s, const struct tt_letter *letter) {
  char to[128];
  uint32_t size = address_to(s, letter, to);
  int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
  if (letter->sender)
    return SC(SYS_sendto, letter->sender->fd, letter->data, letter->size, flags, to, size);
  int fd = (int)SC(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  long r = SC(SYS_sendto, fd, letter->data, letter->size, flags, to, size);
  tt_close(fd);
  return r;
}

static void aim(struct tt_state *state, const struct tt_desc *desc) {
  const struct tt_socket *s = desc->u.socket;
  struct tt_note note = {{0}, 0};
  long r = SC(SYS_connect, desc->fd, s->peer, s->peer_size);
  if (!r) return;
  tt_note(&note, "is not connected again to where its datagrams went, ");
  tt_note_error(&note, (int)r);
  tt_report_fd(state, "connection", desc->fd, note.text);
}

void tt_letters_send(struct tt_state *state) {
  for (struct tt_desc *d = state->descs; d; d = d->next)
    if (d->kind == TT_KIND_SOCKET && tt_is_aimed(d->u.socket)) aim(state, d);
  for (struct tt_desc *d = state->descs; d; d = d->next) {
    if (d->kind != TT_KIND_SOCKET) continue;
    for (const struct tt_letter *l = d->u.socket->letters; l; l = l->next)
      if (send_again(d->u.socket, l) != (long)l->size) {
        tt_report_fd(state, "socket", d->fd, "datagrams that were not read yet are lost");
        break;
      }
  }
}
