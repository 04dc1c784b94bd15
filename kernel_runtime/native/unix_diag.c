/* unix_diag.c: see unix_diag.h. */
#include "unix_diag.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>

int tt_unix_parse(const char *answer, size_t size, struct tt_unix_facts *facts) {
  struct nlmsghdr header;
  struct rtattr attribute;
  memset(facts, 0, sizeof *facts);
  if (size < sizeof header) return -EBADMSG;
  memcpy(&header, answer, sizeof header);
  if (header.nlmsg_len > size || header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return -EBADMSG;
  size_t at = NLMSG_LENGTH(sizeof(struct unix_diag_msg)), end = header.nlmsg_len;
  while (at + sizeof attribute <= end) {
    memcpy(&attribute, answer + at, sizeof attribute);
    size_t length = attribute.rta_len;
    if (length < sizeof attribute || length > end - at) return -EBADMSG;
    const char *value = answer + at + sizeof attribute;
    size_t value_size = length - sizeof attribute;
    if (attribute.rta_type == UNIX_DIAG_PEER && value_size >= 4) memcpy(&facts->peer_ino, value, 4);
    if (attribute.rta_type == UNIX_DIAG_RQLEN && value_size >= sizeof(struct unix_diag_rqlen)) {
      memcpy(&facts->waiting, value, 4);     /* udiag_rqueue */
      memcpy(&facts->backlog, value + 4, 4); /* udiag_wqueue */
    }
    if (attribute.rta_type == UNIX_DIAG_SHUTDOWN && value_size >= 1)
      facts->shutdown = (unsigned char)value[0];
    at += RTA_ALIGN(length);
  }
  return 0;
}

int tt_unix_ask(int *netlink, uint32_t ino, struct tt_unix_facts *facts) {
  struct {
    struct nlmsghdr header;
    struct unix_diag_req request;
  } ask;
  char answer[1024];
  if (*netlink < 0) {
    long fd = SC(SYS_socket, AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0) return (int)fd;
    *netlink = (int)fd;
  }
  memset(&ask, 0, sizeof ask);
  ask.header.nlmsg_len = sizeof ask;
  ask.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.header.nlmsg_flags = NLM_F_REQUEST;
  ask.request.sdiag_family = AF_UNIX;
  ask.request.udiag_states = ~0u;
  ask.request.udiag_ino = ino;
  ask.request.udiag_cookie[0] = ask.request.udiag_cookie[1] = ~0u;
  ask.request.udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN;
  long r = SC(SYS_sendto, *netlink, &ask, sizeof ask, 0, 0, 0);
  if (r < 0) return (int)r;
  r = SC(SYS_recvfrom, *netlink, answer, sizeof answer, MSG_DONTWAIT, 0, 0);
  return r < 0 ? (int)r : tt_unix_parse(answer, (size_t)r, facts);
}
