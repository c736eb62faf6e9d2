//! Which addresses are the public internet's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks of IPv4 that are not: the entries of IANA's registry of special-purpose addresses, multicast and
/// what is reserved.
const OWN_V4: [([u8; 4], u32); 15] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// Networks of IPv6 within 2000::/3, outside of which none is public, that are not either: protocols' own
/// (Teredo among them), documentation's, and 6to4, which has addresses of IPv4 in it.
const OWN_V6: [([u16; 2], u32); 4] =
    [([0x2001, 0], 23), ([0x2001, 0xdb8], 32), ([0x2002, 0], 16), ([0x3fff, 0], 20)];

/// Whether an address is anybody's on the internet, and not this machine's, its networks' or nobody's.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !OWN_V4
        .iter()
        .any(|(network, bits)| (u32::from(address) ^ u32::from_be_bytes(*network)).leading_zeros() >= *bits)
}

/// Addresses of IPv4 within those of IPv6 (mapped, translated) are outside of 2000::/3.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let head = u32::from(first) << 16 | u32::from(second);
    let within = |network: [u16; 2], bits: u32| {
        (head ^ (u32::from(network[0]) << 16 | u32::from(network[1]))).leading_zeros() >= bits
    };
    within([0x2000, 0], 3) && !OWN_V6.iter().any(|(network, bits)| within(*network, *bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_that_are_not_public_end_where_registries_say() {
        for (address, public) in [
            ("0.255.255.255", false),
            ("1.0.0.0", true),
            ("9.255.255.255", true),
            ("10.0.0.0", false),
            ("11.0.0.0", true),
            ("100.63.255.255", true),
            ("100.64.0.0", false),
            ("100.127.255.255", false),
            ("100.128.0.0", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("169.255.0.0", true),
            ("172.15.255.255", true),
            ("172.31.255.255", false),
            ("172.32.0.0", true),
            ("192.0.0.170", false),
            ("192.0.1.0", true),
            ("192.0.2.1", false),
            ("192.88.99.1", false),
            ("192.168.1.1", false),
            ("192.169.0.0", true),
            ("198.17.255.255", true),
            ("198.19.255.255", false),
            ("198.20.0.0", true),
            ("203.0.113.7", false),
            ("223.255.255.255", true),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("::ffff:8.8.8.8", false),
            ("64:ff9b::808:808", false),
            ("64:ff9b:1::1", false),
            ("100::1", false),
            ("1fff:ffff::1", false),
            ("2000::1", true),
            ("2001::1", false),
            ("2001:1ff::1", false),
            ("2001:200::1", true),
            ("2001:db8::1", false),
            ("2001:db9::1", true),
            ("2002:a00:1::", false),
            ("2003::1", true),
            ("2606:4700::1111", true),
            ("3ffe::1", true),
            ("3fff:fff::1", false),
            ("3fff:1000::1", true),
            ("4000::1", false),
            ("fc00::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(address.parse().expect("an address")), public, "{address}");
        }
    }
}
