def discriminator_loss(real, fake):
    loss = 0
    for r, f in zip(real, fake):
        r, f = r.astype("float32"), f.astype("float32")
        loss += ((1 - r) ** 2).mean() + (f**2).mean()
    return loss


def generator_loss(fake):
    return sum(((1 - f.astype("float32")) ** 2).mean() for f in fake)


def feature_loss(real, fake):
    loss = 0
    for r, f in zip(real, fake):
        loss += (r.astype("float32").detach() - f.astype("float32")).abs().mean()
    return loss * 2


def kl_loss(z_p, logs_q, m_p, logs_p):
    z_p, logs_q = z_p.astype("float32"), logs_q.astype("float32")
    m_p, logs_p = m_p.astype("float32"), logs_p.astype("float32")
    kl = logs_p - logs_q - 0.5 + 0.5 * (z_p - m_p) ** 2 * (-2.0 * logs_p).exp()
    return kl.mean()
